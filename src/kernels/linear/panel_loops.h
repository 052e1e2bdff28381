// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/linear/panel_kernels.h"

#include <cstddef>
#include <cstdint>

// The loops of the CPU linear layer, written once over a vector type V and instantiated by
// panel_kernels_*.cpp, each for its own instruction set. V lives in an anonymous namespace there,
// so that every instantiation is local to its file; this header therefore must contain nothing but
// templates over V (and no std:: function may be called here).
//
// Numerics, the same for every V, number of rows, tile and thread:
//   float  acc0 and acc1 take the even and the odd inputs in ascending order, acc = fma(w[k], x[k],
//   acc); after each
//          block of float_block_len(k) inputs acc0 += acc1, acc1 = 0. The result is acc0.
//   int8   per group, ascending: isum = exact dot product;
//          acc = fma(isum, scale_w * scale_x, acc); if bias: acc = fma(bias_w, scaled_sum_x, acc).
//   acc (acc0) starts at (add_to_y ? y : 0) + (out_bias or 0). What lies between two blocks may be
//   kept in y.
//
// V provides: F (16 floats), I (64 bytes or 16 s32), kDirectRows (up to so many rows use the packed
// weights directly, more go through an unpacked block), kIntRows x kIntPanels and kFloatRows x
// kFloatPanels (register tiles), kOffsetWeights (dot4 wants weights as u8: s8 weights come with 128
// added, u4 ones with their zero point, and the offset is undone with ActGroup; otherwise as s8
// without offset), and the static functions used below.

#if defined(__clang__)
#define WR_UNROLL _Pragma("unroll")
#else
#define WR_UNROLL _Pragma("GCC unroll 16")
#endif
#define WR_INLINE_LAMBDA __attribute__((always_inline))

namespace warprow::cpu {

inline constexpr int kMaxIntBlock =
    640;  // inputs unpacked at once by the int8 path; multiples of 32
inline constexpr int kMaxFloatBlock = 320;  // and by the float path

template <typename V>
struct PanelLoops {
  using F = typename V::F;
  using I = typename V::I;
  static constexpr int kLanes = 16;

  // Cuts k into equal blocks of at most max_len inputs, multiples of 32 but for the last.
  static int64_t block_len(int64_t k, int64_t max_len) {
    const int64_t num_blocks = (k + max_len - 1) / max_len;
    return ((k + num_blocks - 1) / num_blocks + 31) / 32 * 32;
  }

  static int num_valid(const PanelJob& job, int64_t panel) {
    const int64_t left = job.num_outputs - panel * kLanes;
    return left < kLanes ? static_cast<int>(left) : kLanes;
  }
  // n of 16 floats; the rest is zero, and is not stored. Kept out of line: only a matrix's last
  // panel comes here.
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
  // Where the sum of a row's panel stands before input k0.
  static F start(const PanelJob& job, int64_t row, int64_t panel, int64_t k0) {
    const int n = num_valid(job, panel);
    if (k0 > 0) {
      return load_some(y_at(job, row, panel), n);
    }
    F acc = job.add_to_y ? load_some(y_at(job, row, panel), n) : V::zero();
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
  static F group_scale(const PanelJob& job, const std::byte* panel, int64_t g) {
    const std::byte* p = panel + job.scales_offset + g * job.scale_group_bytes;
    return job.f16_scales ? V::load_half(p) : V::load_bytes_f32(p);
  }
  // -0 where there is no bias: adding it changes nothing.
  static F group_bias(const PanelJob& job, const std::byte* panel, int64_t g) {
    if (!job.has_bias) {
      return V::set1(-0.0F);
    }
    const std::byte* p =
        panel + job.scales_offset + g * job.scale_group_bytes + job.scale_group_bytes / 2;
    return job.f16_scales ? V::load_half(p) : V::load_bytes_f32(p);
  }

  // Calls sink.template operator()<parity>(k, w) with the exact weights of the panel's 16 outputs
  // for k0 <= k < k1, ascending. k0 is even, for quantised kinds both are multiples of the group.
  template <PackedKind kKind, typename Sink>
  static void for_each_weight(
      const PanelJob& job, const std::byte* panel, int64_t k0, int64_t k1, const Sink& sink) {
    if constexpr (kKind == PackedKind::kQ4) {
      for_each_nibble(job, panel, k0, k1, sink);
    } else if constexpr (kKind == PackedKind::kQ8) {
      for_each_byte(job, panel, k0, k1, sink);
    } else {
      constexpr int64_t kBytes = kLanes * (kKind == PackedKind::kF32 ? 4 : 2);
      const std::byte* p = panel + k0 * kBytes;
      int64_t k = k0;
      for (; k + 2 <= k1; k += 2, p += 2 * kBytes) {
        sink.template operator()<0>(k, plain<kKind>(p));
        sink.template operator()<1>(k + 1, plain<kKind>(p + kBytes));
      }
      if (k < k1) {
        sink.template operator()<0>(k, plain<kKind>(p));
      }
    }
  }
  template <PackedKind kKind>
  static F plain(const std::byte* p) {
    if constexpr (kKind == PackedKind::kF32) {
      return V::load_bytes_f32(p);
    } else if constexpr (kKind == PackedKind::kF16) {
      return V::load_half(p);
    } else {
      return V::load_bf16(p);
    }
  }
  template <typename Sink>
  static void for_each_byte(
      const PanelJob& job, const std::byte* panel, int64_t k0, int64_t k1, const Sink& sink) {
    for (int64_t k = k0; k < k1;) {
      const F scale = group_scale(job, panel, k / job.group);
      const F bias = group_bias(job, panel, k / job.group);
      for (const int64_t end = k + job.group; k < end; k += 4) {
        const I raw = V::load_raw(panel + k * kLanes);
        sink.template operator()<0>(k, V::fma(V::template byte_to_float<0>(raw), scale, bias));
        sink.template operator()<1>(k + 1, V::fma(V::template byte_to_float<1>(raw), scale, bias));
        sink.template operator()<0>(k + 2, V::fma(V::template byte_to_float<2>(raw), scale, bias));
        sink.template operator()<1>(k + 3, V::fma(V::template byte_to_float<3>(raw), scale, bias));
      }
    }
  }
  template <typename Sink>
  static void for_each_nibble(
      const PanelJob& job, const std::byte* panel, int64_t k0, int64_t k1, const Sink& sink) {
    const auto decode = V::nibble_decoder(job.zero_point);
    const int64_t half = job.group / 2;
    for (int64_t k = k0; k < k1; k += job.group) {
      const F scale = group_scale(job, panel, k / job.group);
      const F bias = group_bias(job, panel, k / job.group);
      const std::byte* p = panel + k * kLanes / 2;
      four_nibbles<0>(p, k, k + half, decode, scale, bias, sink);
      four_nibbles<4>(p, k + half, k + job.group, decode, scale, bias, sink);
    }
  }
  template <int kShift, typename Decoder, typename Sink>
  static void four_nibbles(const std::byte* p,
                           int64_t k,
                           int64_t end,
                           const Decoder& decode,
                           F scale,
                           F bias,
                           const Sink& sink) {
    for (; k < end; k += 4, p += 64) {
      const I raw = V::load_raw(p);
      sink.template operator()<0>(
          k, V::fma(V::template nibble_to_float<kShift>(raw, decode), scale, bias));
      sink.template operator()<1>(
          k + 1, V::fma(V::template nibble_to_float<kShift + 8>(raw, decode), scale, bias));
      sink.template operator()<0>(
          k + 2, V::fma(V::template nibble_to_float<kShift + 16>(raw, decode), scale, bias));
      sink.template operator()<1>(
          k + 3, V::fma(V::template nibble_to_float<kShift + 24>(raw, decode), scale, bias));
    }
  }

  // A few rows: each weight is decoded once in registers and used by all of them.
  template <PackedKind kKind, int kRows>
  static void float_direct(const PanelJob& job, const FloatRows& rows, int64_t panel, int64_t row) {
    const std::byte* weights = panel_at(job, panel);
    const int64_t block = block_len(job.k, kMaxFloatBlock);
    const float* x = rows.x + row * rows.stride;
    const int64_t stride = rows.stride;
    F acc[kRows][2];
    WR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      acc[r][0] = start(job, row + r, panel, 0);
    }
    for (int64_t k0 = 0; k0 < job.k; k0 += block) {
      const int64_t k1 = k0 + block < job.k ? k0 + block : job.k;
      WR_UNROLL
      for (int r = 0; r < kRows; ++r) {
        acc[r][1] = V::zero();
      }
      for_each_weight<kKind>(
          job, weights, k0, k1, [&]<int kParity>(int64_t k, F w) WR_INLINE_LAMBDA {
            WR_UNROLL
            for (int r = 0; r < kRows; ++r) {
              acc[r][kParity] = V::fma(w, V::set1(x[r * stride + k]), acc[r][kParity]);
            }
          });
      WR_UNROLL
      for (int r = 0; r < kRows; ++r) {
        acc[r][0] = V::add(acc[r][0], acc[r][1]);
      }
    }
    WR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      finish(job, row + r, panel, acc[r][0]);
    }
  }

  // Weights of kFloatPanels panels, one block of inputs, as floats.
  struct FloatBlock {
    alignas(64) float w[V::kFloatPanels][kMaxFloatBlock][kLanes];
  };

  // A register tile over one block: rows [row, row + kRows) of panels [panel, panel + kPanels).
  // w[p] is panel p's first weight vector of the block.
  template <int kPanels, int kRows>
  [[gnu::noinline]] static void float_tile(const PanelJob& job,
                                           const FloatRows& rows,
                                           const float* const* w,
                                           int64_t panel,
                                           int64_t row,
                                           int64_t k0,
                                           int64_t k1) {
    F acc[kPanels][kRows][2];
    WR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      WR_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        acc[p][r][0] = start(job, row + r, panel + p, k0);
        acc[p][r][1] = V::zero();
      }
    }
    const float* x = rows.x + row * rows.stride + k0;
    const int64_t stride = rows.stride;
    const float* w0 = w[0];
    const float* w1 = w[kPanels - 1];
    const auto step = [&]<int kParity>(int64_t k) WR_INLINE_LAMBDA {
      const F v0 = V::load(w0 + k * kLanes);
      const F v1 = V::load(w1 + k * kLanes);
      WR_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const F a = V::set1(x[r * stride + k]);
        acc[0][r][kParity] = V::fma(v0, a, acc[0][r][kParity]);
        if constexpr (kPanels == 2) {
          acc[1][r][kParity] = V::fma(v1, a, acc[1][r][kParity]);
        }
      }
    };
    const int64_t len = k1 - k0;
    int64_t k = 0;
    for (; k + 2 <= len; k += 2) {
      step.template operator()<0>(k);
      step.template operator()<1>(k + 1);
    }
    if (k < len) {
      step.template operator()<0>(k);
    }
    WR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      WR_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        finish(job, row + r, panel + p, V::add(acc[p][r][0], acc[p][r][1]));
      }
    }
  }

  template <PackedKind kKind, int kPanels>
  static void float_unpacked(const PanelJob& job, const FloatRows& rows, int64_t panel) {
    FloatBlock block_weights;
    const int64_t block = block_len(job.k, kMaxFloatBlock);
    for (int64_t k0 = 0; k0 < job.k; k0 += block) {
      const int64_t k1 = k0 + block < job.k ? k0 + block : job.k;
      const float* w[kPanels];
      for (int p = 0; p < kPanels; ++p) {
        float* dst = block_weights.w[p][0];
        for_each_weight<kKind>(job,
                               panel_at(job, panel + p),
                               k0,
                               k1,
                               [&]<int kParity>(int64_t k, F v)
                                   WR_INLINE_LAMBDA { V::store(dst + (k - k0) * kLanes, v); });
        w[p] = dst;
      }
      for_each_row_tile<V::kFloatRows>(job.num_rows, [&]<int kRows>(int64_t row) WR_INLINE_LAMBDA {
        float_tile<kPanels, kRows>(job, rows, w, panel, row, k0, k1);
      });
    }
  }

  template <PackedKind kKind>
  static void float_kind(const PanelJob& job, const FloatRows& rows) {
    if (job.num_rows <= V::kDirectRows) {
      for (int64_t panel = 0; panel < job.num_panels; ++panel) {
        for_each_row_tile<V::kDirectTile>(job.num_rows,
                                          [&]<int kRows>(int64_t row) WR_INLINE_LAMBDA {
                                            float_direct<kKind, kRows>(job, rows, panel, row);
                                          });
      }
      return;
    }
    int64_t panel = 0;
    for (; panel + V::kFloatPanels <= job.num_panels; panel += V::kFloatPanels) {
      float_unpacked<kKind, V::kFloatPanels>(job, rows, panel);
    }
    for (; panel < job.num_panels; ++panel) {
      float_unpacked<kKind, 1>(job, rows, panel);
    }
  }

  static void float_panels(const PanelJob& job, const FloatRows& rows) {
    switch (job.kind) {
      case PackedKind::kF32:
        return float_kind<PackedKind::kF32>(job, rows);
      case PackedKind::kF16:
        return float_kind<PackedKind::kF16>(job, rows);
      case PackedKind::kBF16:
        return float_kind<PackedKind::kBF16>(job, rows);
      case PackedKind::kQ4:
        return float_kind<PackedKind::kQ4>(job, rows);
      case PackedKind::kQ8:
        return float_kind<PackedKind::kQ8>(job, rows);
    }
  }

  // Covers num_rows rows with tiles of nearly equal height, at most kMaxRows:
  // tile.template operator()<height>(row).
  template <int kMaxRows, typename Tile>
  static void for_each_row_tile(int64_t num_rows, const Tile& tile) {
    const int64_t num_tiles = (num_rows + kMaxRows - 1) / kMaxRows;
    for (int64_t row = 0, t = num_tiles; t > 0; --t) {
      const int64_t height = (num_rows - row + t - 1) / t;
      row_tile<kMaxRows>(height, row, tile);
      row += height;
    }
  }
  template <int kRows, typename Tile>
  static void row_tile(int64_t height, int64_t row, const Tile& tile) {
    if constexpr (kRows > 1) {
      if (height < kRows) {
        row_tile<kRows - 1>(height, row, tile);
        return;
      }
    }
    tile.template operator()<kRows>(row);
  }

  // What an integer sum starts at, so that it ends as the sum over true weights.
  static I int_start(const PanelJob& job, const ActGroup& act) {
    if constexpr (V::kOffsetWeights) {
      if (job.kind == PackedKind::kQ8) {
        return V::set1_s32(act.minus_128_sums);
      }
      if (job.zero_point != 0) {
        return V::set1_s32(act.minus_8_sums);
      }
    }
    return V::zero_int();
  }

  // Group g's weights as dot4 wants them: out[i] holds inputs 4i .. 4i + 3 of the group.
  template <PackedKind kKind, int kGroup>
  static void load_group(const PanelJob& job,
                         const std::byte* panel,
                         int64_t g,
                         I (&out)[kGroup / 4]) {
    if constexpr (kKind == PackedKind::kQ8) {
      const std::byte* p = panel + g * kGroup * kLanes;
      WR_UNROLL
      for (int i = 0; i < kGroup / 4; ++i) {
        out[i] = V::weights_of_s8(V::load_raw(p + i * 64));
      }
    } else {
      const std::byte* p = panel + g * kGroup * kLanes / 2;
      WR_UNROLL
      for (int i = 0; i < kGroup / 8; ++i) {
        const I raw = V::load_raw(p + i * 64);
        out[i] = V::weights_of_u4(V::low_nibbles(raw), job.zero_point);
        out[i + kGroup / 8] = V::weights_of_u4(V::high_nibbles(raw), job.zero_point);
      }
    }
  }

  static F add_group(F acc, I isum, F scale, const ActGroup& act) {
    return V::fma(V::to_float(isum), V::mul(scale, V::set1(act.scale)), acc);
  }

  // A few rows of one panel, straight from the packed weights.
  template <PackedKind kKind, int kGroup, int kRows>
  static void int8_direct(const PanelJob& job, const Int8Rows& rows, int64_t panel, int64_t row) {
    const std::byte* weights = panel_at(job, panel);
    const int8_t* q = rows.q + row * rows.stride;
    const ActGroup* acts = rows.groups + row * rows.group_stride;
    const int64_t num_groups = job.k / kGroup;
    const int64_t bytes_per_group = job.panel_bytes / num_groups;
    const std::byte* ahead = weights + 8192;
    F acc[kRows];
    WR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      acc[r] = start(job, row + r, panel, 0);
    }
    for (int64_t g = 0; g < num_groups; ++g) {
      for (const std::byte* end = ahead + bytes_per_group; ahead < end; ahead += 64) {
        __builtin_prefetch(ahead);
      }
      I w[kGroup / 4];
      load_group<kKind, kGroup>(job, weights, g, w);
      const F scale = group_scale(job, weights, g);
      const F bias = group_bias(job, weights, g);
      WR_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const ActGroup& act = acts[r * rows.group_stride + g];
        const int8_t* a = q + r * rows.stride + g * kGroup;
        I even = int_start(job, act);
        I odd = V::zero_int();
        WR_UNROLL
        for (int i = 0; i < kGroup / 4; i += 2) {
          even = V::dot4(even, w[i], V::load_dword(a + 4 * i));
          odd = V::dot4(odd, w[i + 1], V::load_dword(a + 4 * i + 4));
        }
        acc[r] = add_group(acc[r], V::add_s32(even, odd), scale, act);
        if (job.has_bias) {
          acc[r] = V::fma(bias, V::set1(act.scaled_sum), acc[r]);
        }
      }
    }
    WR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      finish(job, row + r, panel, acc[r]);
    }
  }

  // Weights of kIntPanels panels, one block of inputs, as dot4 wants them.
  struct Int8Block {
    alignas(64) uint8_t w[V::kIntPanels][kMaxIntBlock * kLanes];
    alignas(64) float scale[V::kIntPanels][kMaxIntBlock / 16][kLanes];
    alignas(64) float bias[V::kIntPanels][kMaxIntBlock / 16][kLanes];
  };

  template <PackedKind kKind, int kGroup>
  static void unpack_int8(
      const PanelJob& job, int64_t panel, int64_t g0, int64_t g1, int slot, Int8Block& block) {
    const std::byte* weights = panel_at(job, panel);
    for (int64_t g = g0; g < g1; ++g) {
      I w[kGroup / 4];
      load_group<kKind, kGroup>(job, weights, g, w);
      uint8_t* dst = block.w[slot] + (g - g0) * kGroup * kLanes;
      WR_UNROLL
      for (int i = 0; i < kGroup / 4; ++i) {
        V::store_raw(dst + i * 64, w[i]);
      }
      V::store(block.scale[slot][g - g0], group_scale(job, weights, g));
      V::store(block.bias[slot][g - g0], group_bias(job, weights, g));
    }
  }

  template <int kGroup, int kPanels, int kRows>
  [[gnu::noinline]] static void int8_tile(const PanelJob& job,
                                          const Int8Rows& rows,
                                          const Int8Block& block,
                                          int64_t panel,
                                          int64_t row,
                                          int64_t g0,
                                          int64_t g1) {
    F acc[kPanels][kRows];
    WR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      WR_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        acc[p][r] = start(job, row + r, panel + p, g0);
      }
    }
    const int8_t* q = rows.q + row * rows.stride + g0 * kGroup;
    const ActGroup* acts = rows.groups + row * rows.group_stride + g0;
    for (int64_t g = 0; g < g1 - g0; ++g) {
      I sum[kPanels][kRows];
      WR_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const I first = int_start(job, acts[r * rows.group_stride + g]);
        WR_UNROLL
        for (int p = 0; p < kPanels; ++p) {
          sum[p][r] = first;
        }
      }
      for (int i = 0; i < kGroup / 4; ++i) {
        I w[kPanels];
        WR_UNROLL
        for (int p = 0; p < kPanels; ++p) {
          w[p] = V::load_raw(block.w[p] + (g * (kGroup / 4) + i) * 64);
        }
        WR_UNROLL
        for (int r = 0; r < kRows; ++r) {
          const auto a = V::load_dword(q + r * rows.stride + g * kGroup + 4 * i);
          WR_UNROLL
          for (int p = 0; p < kPanels; ++p) {
            sum[p][r] = V::dot4_pinned(sum[p][r], w[p], a);
          }
        }
      }
      WR_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        const F scale = V::load(block.scale[p][g]);
        const F bias = V::load(block.bias[p][g]);
        WR_UNROLL
        for (int r = 0; r < kRows; ++r) {
          const ActGroup& act = acts[r * rows.group_stride + g];
          acc[p][r] = add_group(acc[p][r], sum[p][r], scale, act);
          if (job.has_bias) {
            acc[p][r] = V::fma(bias, V::set1(act.scaled_sum), acc[p][r]);
          }
        }
      }
    }
    WR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      WR_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        finish(job, row + r, panel + p, acc[p][r]);
      }
    }
  }

  template <PackedKind kKind, int kGroup, int kPanels>
  static void int8_unpacked(const PanelJob& job, const Int8Rows& rows, int64_t panel) {
    Int8Block block;
    const int64_t groups_per_block = block_len(job.k, kMaxIntBlock) / kGroup;
    const int64_t num_groups = job.k / kGroup;
    for (int64_t g0 = 0; g0 < num_groups; g0 += groups_per_block) {
      const int64_t g1 = g0 + groups_per_block < num_groups ? g0 + groups_per_block : num_groups;
      for (int p = 0; p < kPanels; ++p) {
        unpack_int8<kKind, kGroup>(job, panel + p, g0, g1, p, block);
      }
      for_each_row_tile<V::kIntRows>(job.num_rows, [&]<int kRows>(int64_t row) WR_INLINE_LAMBDA {
        int8_tile<kGroup, kPanels, kRows>(job, rows, block, panel, row, g0, g1);
      });
    }
  }

  template <PackedKind kKind, int kGroup>
  static void int8_kind(const PanelJob& job, const Int8Rows& rows) {
    if (job.num_rows <= V::kDirectRows) {
      for (int64_t panel = 0; panel < job.num_panels; ++panel) {
        for_each_row_tile<V::kDirectTile>(
            job.num_rows, [&]<int kRows>(int64_t row) WR_INLINE_LAMBDA {
              int8_direct<kKind, kGroup, kRows>(job, rows, panel, row);
            });
      }
      return;
    }
    int64_t panel = 0;
    for (; panel + V::kIntPanels <= job.num_panels; panel += V::kIntPanels) {
      int8_unpacked<kKind, kGroup, V::kIntPanels>(job, rows, panel);
    }
    for (; panel < job.num_panels; ++panel) {
      int8_unpacked<kKind, kGroup, 1>(job, rows, panel);
    }
  }

  static void int8_panels(const PanelJob& job, const Int8Rows& rows) {
    if (job.kind == PackedKind::kQ4) {
      job.group == 32 ? int8_kind<PackedKind::kQ4, 32>(job, rows)
                      : int8_kind<PackedKind::kQ4, 16>(job, rows);
    } else {
      job.group == 32 ? int8_kind<PackedKind::kQ8, 32>(job, rows)
                      : int8_kind<PackedKind::kQ8, 16>(job, rows);
    }
  }

  static ActGroup act_group(float scale, int32_t sum) {
    return {scale, scale * static_cast<float>(sum), -8 * sum, -128 * sum};
  }
  // 32 inputs: scale is the largest magnitude / 127; inputs all below 1e-30 count as zero.
  static void quantise_group(const float* x, int8_t* q, ActGroup* by32, ActGroup* by16) {
    const F low = V::load(x);
    const F high = V::load(x + kLanes);
    const float amax = V::max_of_abs(low, high);
    const bool any = amax >= 1e-30F;
    const float scale = any ? amax / 127.0F : 0.0F;
    const F inverse = V::set1(any ? 127.0F / amax : 0.0F);
    const int32_t sum_low = V::round_to_s8(q, V::mul(low, inverse));
    const int32_t sum_high = V::round_to_s8(q + kLanes, V::mul(high, inverse));
    *by32 = act_group(scale, sum_low + sum_high);
    if (by16 != nullptr) {
      by16[0] = act_group(scale, sum_low);
      by16[1] = act_group(scale, sum_high);
    }
  }
  static void quantise_row(const float* x, int64_t k, int8_t* q, ActGroup* by32, ActGroup* by16) {
    int64_t g = 0;
    for (; (g + 1) * 32 <= k; ++g) {
      quantise_group(x + g * 32, q + g * 32, by32 + g, by16 == nullptr ? nullptr : by16 + 2 * g);
    }
    if (g * 32 < k) {
      float rest[32] = {};
      for (int64_t i = g * 32; i < k; ++i) {
        rest[i - g * 32] = x[i];
      }
      quantise_group(rest, q + g * 32, by32 + g, by16 == nullptr ? nullptr : by16 + 2 * g);
    }
  }

  static constexpr PanelKernels table(const char* name) {
    return {name, &quantise_row, &float_panels, &int8_panels};
  }
};

}  // namespace warprow::cpu
