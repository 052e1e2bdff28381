// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/linear/cpu/panel_kernels.h"
#include "kernels/simd/even_parts.h"

#include <cstddef>
#include <cstdint>

// The loops of the CPU linear layer (this file, panel_float.h, panel_int8.h) are templates over a vector type
// V. panel_loops.inl instantiates them, once for each instruction set, with a PanelVector of that set
// (panel_vector_*.h). PanelVector is in an anonymous namespace, so every instantiation is local to its file. Therefore these
// headers contain only templates over V and call no function of the standard library.
//
// Numerics: the same for every V except the generic one (whose fma rounds twice), and for every number of
//   rows, tile and thread. A sum starts at out_bias or 0.
// Float path: the first sum takes the even inputs; a second sum, from 0, takes the odd inputs, in ascending
// order, each by sum = fma(w, x, sum). After each block of block_len(k, kMaxFloatBlock) inputs the second sum
// is added to the first and starts at 0 again.
// Int8 path: group after group, with isum the exact dot product of the group's integers, sum = fma(isum,
// scale_w * scale_x, sum), and with a bias sum = fma(bias_w, scaled_sum_x, sum). kQ8 has groups of 32 or kWideGroup inputs;
// codes are loaded in parts of group_of(kind) inputs, one or four of which are a group.
// Between two blocks of inputs the sum may be stored in y, which is exact. AMX's int8 path is the same.
//
// V provides F (16 floats), I (64 bytes or 16 s32), static functions on them, and constants. Up to
// kDirectRows rows (of kQ4 in the int8 path kDirectQ4Rows) use the packed weights directly, in tiles of kDirectTile rows.
// More rows use unpacked blocks with register tiles of kFloatRows x kFloatPanels and kIntRows x kIntPanels. With
// kOffsetWeights, dot4 takes weights as u8: 128 is added to s8 weights, others keep their zero point, and ActGroup's sum
// removes the offset. Otherwise weights are s8 without offset. AVX2 without VNNI has an int8 path of its own
// (panel_short_int8.h).

#define WR_INLINE_LAMBDA __attribute__((always_inline))

namespace warprow::cpu {

// Position of a register tile: its first row and panel, and the inputs (or groups of inputs) it sums over.
struct TilePlace {
  int64_t row;
  int64_t panel;
  int64_t begin;
  int64_t end;
};

template <typename V>
struct PanelAccess {
  using F = typename V::F;
  using I = typename V::I;
  static constexpr int kLanes = 16;

  // Inputs that share a scale, and the bytes of that many stored values of 16 outputs.
  static constexpr int group_of(PackedKind kind) {
    return kind == PackedKind::kQ2 || kind == PackedKind::kQ6 || kind == PackedKind::kTable16 ? 16
                                                                                              : 32;
  }
  static constexpr int group_bytes_of(PackedKind kind) {
    switch (kind) {
      case PackedKind::kQ2:
        return 64;
      case PackedKind::kTable16:
        return 128;
      case PackedKind::kQ6:
        return 192;
      case PackedKind::kQ4:
      case PackedKind::kMxfp4:
      case PackedKind::kTable:
        return 256;
      case PackedKind::kQ5:
        return 320;
      default:
        return 512;
    }
  }
  static constexpr bool has_table(PackedKind kind) {
    return kind == PackedKind::kTable || kind == PackedKind::kTable16;
  }
  // Whether codes are s8 without a zero point; those of other kinds are u8.
  static constexpr bool is_signed(PackedKind kind) {
    return kind == PackedKind::kQ8 || has_table(kind);
  }

  // Splits k into equal blocks of at most max_len inputs, multiples of `unit` except for the last. So is max_len.
  static int64_t block_len(int64_t k, int64_t max_len, int64_t unit = 32) {
    const int64_t num_blocks = (k + max_len - 1) / max_len;
    return ((k + num_blocks - 1) / num_blocks + unit - 1) / unit * unit;
  }

  static int num_valid(const PanelJob& job, int64_t panel) {
    const int64_t left = job.num_outputs - panel * kLanes;
    return left < kLanes ? static_cast<int>(left) : kLanes;
  }
  // Loads n of 16 floats and zeros for the rest; store_part stores n. Not inlined: only the last panel of a
  // matrix calls them.
  [[gnu::noinline]] static void load_part(const float* p, int n, float* lanes) {
    for (int i = 0; i < kLanes; ++i) {
      lanes[i] = i < n ? p[i] : 0.0F;
    }
  }
  [[gnu::noinline]] static void store_part(float* p, int n, const float* lanes) {
    for (int i = 0; i < n; ++i) {
      p[i] = lanes[i];
    }
  }
  static F load_some(const float* p, int n) {
    if (n == kLanes) [[likely]] {
      return V::load(p);
    }
    float lanes[kLanes];
    load_part(p, n, lanes);
    return V::load(lanes);
  }
  static void store_some(float* p, F v, int n) {
    if (n == kLanes) [[likely]] {
      V::store(p, v);
      return;
    }
    float lanes[kLanes];
    V::store(lanes, v);
    store_part(p, n, lanes);
  }
  static float* y_at(const PanelJob& job, int64_t row, int64_t panel) {
    return job.y + row * job.y_stride + panel * kLanes;
  }
  // The sum of a row's panel before input k0.
  static F start(const PanelJob& job, int64_t row, int64_t panel, int64_t k0) {
    const int n = num_valid(job, panel);
    if (k0 > 0) {
      return load_some(y_at(job, row, panel), n);
    }
    F acc = V::zero();
    if (job.out_bias != nullptr) {
      acc = V::add(acc, load_some(job.out_bias + panel * kLanes, n));
    }
    return acc;
  }
  static void finish(const PanelJob& job, int64_t row, int64_t panel, F acc) {
    store_some(y_at(job, row, panel), acc, num_valid(job, panel));
  }

  static const std::byte* panel_at(const PanelJob& job, int64_t panel) {
    return job.panels + panel * job.panel_bytes;
  }
  template <PackedKind kKind>
  static F group_scale(const PanelJob& job, const std::byte* panel, int64_t g) {
    if constexpr (kKind == PackedKind::kMxfp4) {
      return V::load_powers(panel + job.scales_offset + g * job.scale_group_bytes);
    } else if constexpr (has_table(kKind)) {
      return V::mul(group_factor<group_of(kKind)>(job, panel, g, 0), V::set1(job.scale_unit));
    } else {
      return group_factor<group_of(kKind)>(job, panel, g, 0);
    }
  }
  // -0 without a bias: adding it changes nothing.
  template <PackedKind kKind>
  static F group_bias(const PanelJob& job, const std::byte* panel, int64_t g) {
    if constexpr (kKind != PackedKind::kMxfp4) {
      if (job.has_bias) {
        return group_factor<group_of(kKind)>(job, panel, g, 1);
      }
    }
    return V::set1(-0.0F);
  }
  // `half` 0: group g's scales; 1: its biases, which are the second half of a group's values.
  template <int kGroup>
  static F group_factor(const PanelJob& job, const std::byte* panel, int64_t g, int half) {
    const std::byte* p = panel + job.scales_offset;
    if (job.scales == ScaleForm::kSplit) {
      constexpr int kGroups = kSplitInputs / kGroup;
      p += g / kGroups * job.split_bytes;
      const F wide = V::load_half(p + half * kLanes * 2);
      // The halves of all lanes come first: two bytes a lane, where a group's factors have one.
      const std::byte* factors =
          p + 2 * job.scale_group_bytes + g % kGroups * job.scale_group_bytes;
      return V::mul(wide, V::load_s8(factors + half * kLanes));
    }
    if (job.scales == ScaleForm::kF32) {
      return V::load_bytes_f32(p + g * job.scale_group_bytes + half * kLanes * 4);
    }
    return V::load_half(p + g * job.scale_group_bytes + half * kLanes * 2);
  }

  // Scales a group's integer sum and adds it: one definition, so that all int8 kernels have the same bits.
  struct GroupFactors {
    F scale;
    F bias;
    bool has_bias;
    F operator()(F acc, I sum, const ActGroup& act) const {
      acc = V::fma(V::to_float(sum), V::mul(scale, V::set1(act.scale)), acc);
      return has_bias ? V::fma(bias, V::set1(act.scaled_sum), acc) : acc;
    }
  };
  template <PackedKind kKind>
  static GroupFactors group_factors(const PanelJob& job, const std::byte* panel, int64_t g) {
    return {group_scale<kKind>(job, panel, g), group_bias<kKind>(job, panel, g), job.has_bias};
  }
  // The factors of an unpacked block's group, 16 floats each; without biases `bias` is neither written nor read.
  template <PackedKind kKind>
  static void unpack_factors(
      const PanelJob& job, const std::byte* panel, int64_t g, float* scale, float* bias) {
    V::store(scale, group_scale<kKind>(job, panel, g));
    if (job.has_bias) {
      V::store(bias, group_bias<kKind>(job, panel, g));
    }
  }
  static GroupFactors unpacked_factors(bool has_bias, const float* scale, const float* bias) {
    return {V::load(scale), has_bias ? V::load(bias) : V::zero(), has_bias};
  }

  // Calls f.template operator()<kKind, kGroup>() for a kind that int8 kernels multiply and the inputs of a group.
  template <typename Run>
  static void with_int8_kind(const PanelJob& job, const Run& f) {
    const auto run = [&f]<PackedKind kKind> {
      return f.template operator()<kKind, group_of(kKind)>();
    };
    switch (job.kind) {
      case PackedKind::kQ4:
        return run.template operator()<PackedKind::kQ4>();
      case PackedKind::kQ5:
        return run.template operator()<PackedKind::kQ5>();
      case PackedKind::kQ6:
        return run.template operator()<PackedKind::kQ6>();
      case PackedKind::kMxfp4:
        return run.template operator()<PackedKind::kMxfp4>();
      case PackedKind::kQ2:
        return run.template operator()<PackedKind::kQ2>();
      case PackedKind::kTable:
        return run.template operator()<PackedKind::kTable>();
      case PackedKind::kTable16:
        return run.template operator()<PackedKind::kTable16>();
      default:
        return job.group == kWideGroup ? f.template operator()<PackedKind::kQ8, kWideGroup>()
                                       : run.template operator()<PackedKind::kQ8>();
    }
  }

  // Unpacks the stored values of group_of(kind) inputs, the g-th so many, to bytes: calls sink.template operator()<i>(codes)
  // with inputs 4i .. 4i + 3 of them, in the order in which they are stored.
  template <PackedKind kKind, typename Sink>
  static void for_each_code(const PanelJob& job,
                            const std::byte* panel,
                            int64_t g,
                            const Sink& sink) {
    const std::byte* p = panel + g * group_bytes_of(kKind);
    if constexpr (kKind == PackedKind::kQ2) {
      pairs_of<0>(V::load_raw(p), sink);
    } else if constexpr (kKind == PackedKind::kQ5 || kKind == PackedKind::kQ6) {
      const I plane = V::load_raw(p + num_raws<kKind> * 64);
      codes_of<kKind, 0>(p, plane, sink);
    } else if constexpr (has_table(kKind)) {
      codes_of<kKind, 0>(p, V::load_numbers(job.numbers), sink);
    } else {
      codes_of<kKind, 0>(p, I{}, sink);
    }
  }
  // The vectors of a group that hold nibbles, or bytes of kQ8.
  template <PackedKind kKind>
  static constexpr int num_raws = group_of(kKind) / (kKind == PackedKind::kQ8 ? 4 : 8);
  template <int kStep, typename Sink>
  static void pairs_of(I pairs, const Sink& sink) {
    if constexpr (kStep < 4) {
      sink.template operator()<kStep>(V::template add_bits<-2 * kStep, 0x03030303U>(I{}, pairs));
      pairs_of<kStep + 1>(pairs, sink);
    }
  }
  // plane: of kQ5 and kQ6; of tables their numbers.
  template <PackedKind kKind, int kRaw, typename Sink>
  static void codes_of(const std::byte* p, I plane, const Sink& sink) {
    constexpr int kRaws = num_raws<kKind>;
    if constexpr (kRaw < kRaws) {
      const I raw = V::load_raw(p + kRaw * 64);
      if constexpr (kKind == PackedKind::kQ8) {
        sink.template operator()<kRaw>(raw);
      } else {
        sink.template operator()<kRaw>(code<kKind, kRaw>(V::low_nibbles(raw), plane));
        sink.template operator()<kRaw + kRaws>(
            code<kKind, kRaw + kRaws>(V::high_nibbles(raw), plane));
      }
      codes_of<kKind, kRaw + 1>(p, plane, sink);
    }
  }
  // The code of a nibble and, of kQ5 and kQ6, its upper bits in the plane, or its number in the table.
  template <PackedKind kKind, int kStep>
  static I code(I nibbles, I plane) {
    if constexpr (kKind == PackedKind::kMxfp4) {
      return V::e2m1_codes(nibbles);
    } else if constexpr (has_table(kKind)) {
      return V::look_up(plane, nibbles);
    } else if constexpr (kKind == PackedKind::kQ4) {
      return nibbles;
    } else {
      constexpr int kBits = kKind == PackedKind::kQ5 ? 1 : 2;
      constexpr uint32_t kMask = kBits == 1 ? 0x10101010U : 0x30303030U;
      return V::template add_bits<4 - kBits * kStep, kMask>(nibbles, plane);
    }
  }
  template <PackedKind kKind>
  static void load_codes(const PanelJob& job,
                         const std::byte* panel,
                         int64_t g,
                         I (&out)[group_of(kKind) / 4]) {
    for_each_code<kKind>(
        job, panel, g, [&]<int kStep>(I codes) WR_INLINE_LAMBDA { out[kStep] = codes; });
  }
};

}  // namespace warprow::cpu
