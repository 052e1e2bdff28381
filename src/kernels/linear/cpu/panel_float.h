// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/linear/cpu/panel_access.h"

#include <cstddef>
#include <cstdint>

namespace warprow::cpu {

inline constexpr int kMaxFloatBlock = 320;  // inputs of a block

// Float sums over exactly dequantised weights of any kind.
template <typename V>
struct FloatPanels {
  using Access = PanelAccess<V>;
  using F = typename V::F;
  using I = typename V::I;
  static constexpr int kLanes = Access::kLanes;

  // A group's scale and bias, which turn stored values into weights.
  struct Affine {
    F scale;
    F bias;
    F operator()(F q) const { return V::fma(q, scale, bias); }
  };

  // Calls sink.template operator()<parity>(k, w) with the exact weights of the panel's 16 outputs for k0 <= k
  // < k1, ascending. k0 is even; for quantised kinds both are multiples of the group.
  template <PackedKind kKind, typename Sink>
  static void for_each_weight(
      const PanelJob& job, const std::byte* panel, int64_t k0, int64_t k1, const Sink& sink) {
    if constexpr (kKind == PackedKind::kQ4) {
      for_each_nibble(job, panel, k0, k1, sink);
    } else if constexpr (kKind >= PackedKind::kQ5) {
      for_each_byte<kKind>(job, panel, k0, k1, sink);
    } else if constexpr (kKind == PackedKind::kBF16) {
      for_each_bf16(panel, k0, k1, sink);
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
    } else {
      return V::load_half(p);
    }
  }
  template <typename Sink>
  static void for_each_bf16(const std::byte* panel, int64_t k0, int64_t k1, const Sink& sink) {
    for (int64_t k = k0; k < k1; k += 2) {
      const I pair = V::load_raw(panel + k * kLanes * 2);
      sink.template operator()<0>(k, V::low_bf16(pair));
      if (k + 1 < k1) {
        sink.template operator()<1>(k + 1, V::high_bf16(pair));
      }
    }
  }
  template <PackedKind kKind, typename Sink>
  static void for_each_byte(
      const PanelJob& job, const std::byte* panel, int64_t k0, int64_t k1, const Sink& sink) {
    constexpr int kGroup = Access::group_of(kKind);
    for (int64_t k = k0; k < k1;) {
      const Affine affine = group_affine<kKind>(job, panel, k);
      I codes[kGroup / 4];
      Access::template load_codes<kKind>(job, panel, k / kGroup, codes);
      WR_UNROLL
      for (int i = 0; i < kGroup / 4; ++i, k += 4) {
        const I q =
            Access::is_signed(kKind) ? codes[i] : V::subtract_bytes(codes[i], job.zero_point);
        sink.template operator()<0>(k, affine(V::template byte_to_float<0>(q)));
        sink.template operator()<1>(k + 1, affine(V::template byte_to_float<1>(q)));
        sink.template operator()<0>(k + 2, affine(V::template byte_to_float<2>(q)));
        sink.template operator()<1>(k + 3, affine(V::template byte_to_float<3>(q)));
      }
    }
  }
  template <PackedKind kKind>
  static Affine group_affine(const PanelJob& job, const std::byte* panel, int64_t k) {
    const int64_t g = k / (kKind == PackedKind::kQ8 ? job.group : Access::group_of(kKind));
    return {Access::template group_scale<kKind>(job, panel, g),
            Access::template group_bias<kKind>(job, panel, g)};
  }
  template <typename Sink>
  static void for_each_nibble(
      const PanelJob& job, const std::byte* panel, int64_t k0, int64_t k1, const Sink& sink) {
    const auto decode = V::nibble_decoder(job.zero_point);
    constexpr int kGroup = Access::group_of(PackedKind::kQ4);
    for (int64_t k = k0; k < k1; k += kGroup) {
      const Affine affine = group_affine<PackedKind::kQ4>(job, panel, k);
      const std::byte* p = panel + k * kLanes / 2;
      four_nibbles<0>(p, k, k + kGroup / 2, decode, affine, sink);
      four_nibbles<4>(p, k + kGroup / 2, k + kGroup, decode, affine, sink);
    }
  }
  template <int kShift, typename Decoder, typename Sink>
  static void four_nibbles(const std::byte* p,
                           int64_t k,
                           int64_t end,
                           const Decoder& decode,
                           const Affine& affine,
                           const Sink& sink) {
    for (; k < end; k += 4, p += 64) {
      const I raw = V::load_raw(p);
      sink.template operator()<0>(k, affine(V::template nibble_to_float<kShift>(raw, decode)));
      sink.template operator()<1>(k + 1,
                                  affine(V::template nibble_to_float<kShift + 8>(raw, decode)));
      sink.template operator()<0>(k + 2,
                                  affine(V::template nibble_to_float<kShift + 16>(raw, decode)));
      sink.template operator()<1>(k + 3,
                                  affine(V::template nibble_to_float<kShift + 24>(raw, decode)));
    }
  }

  // A few rows: each weight is decoded once, in registers, for all of them.
  template <PackedKind kKind, int kRows>
  static void float_direct(const PanelJob& job, const FloatRows& rows, int64_t panel, int64_t row) {
    const std::byte* weights = Access::panel_at(job, panel);
    const int64_t block = Access::block_len(job.k, kMaxFloatBlock);
    const float* x = rows.x + row * rows.stride;
    const int64_t stride = rows.stride;
    F acc[kRows][2];
    WR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      acc[r][0] = Access::start(job, row + r, panel, 0);
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
      Access::finish(job, row + r, panel, acc[r][0]);
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
                                           const TilePlace& at) {
    F acc[kPanels][kRows][2];
    WR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      WR_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        acc[p][r][0] = Access::start(job, at.row + r, at.panel + p, at.begin);
        acc[p][r][1] = V::zero();
      }
    }
    const float* x = rows.x + at.row * rows.stride + at.begin;
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
    const int64_t len = at.end - at.begin;
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
        Access::finish(job, at.row + r, at.panel + p, V::add(acc[p][r][0], acc[p][r][1]));
      }
    }
  }

  template <PackedKind kKind, int kPanels>
  static void float_unpacked(const PanelJob& job, const FloatRows& rows, int64_t panel) {
    FloatBlock block_weights;
    const int64_t block = Access::block_len(job.k, kMaxFloatBlock);
    for (int64_t k0 = 0; k0 < job.k; k0 += block) {
      const int64_t k1 = k0 + block < job.k ? k0 + block : job.k;
      const float* w[kPanels];
      for (int p = 0; p < kPanels; ++p) {
        float* dst = block_weights.w[p][0];
        for_each_weight<kKind>(job,
                               Access::panel_at(job, panel + p),
                               k0,
                               k1,
                               [&]<int kParity>(int64_t k, F v)
                                   WR_INLINE_LAMBDA { V::store(dst + (k - k0) * kLanes, v); });
        w[p] = dst;
      }
      for_each_even_tile<V::kFloatRows>(job.num_rows, [&]<int kRows>(int64_t row) WR_INLINE_LAMBDA {
        float_tile<kPanels, kRows>(job, rows, w, {row, panel, k0, k1});
      });
    }
  }

  template <PackedKind kKind>
  static void float_kind(const PanelJob& job, const FloatRows& rows) {
    if (job.num_rows <= V::kDirectRows) {
      for (int64_t panel = 0; panel < job.num_panels; ++panel) {
        for_each_even_tile<V::kDirectTile>(job.num_rows,
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

  static void run(const PanelJob& job, const FloatRows& rows) {
    switch (job.kind) {
      case PackedKind::kF32:
        return float_kind<PackedKind::kF32>(job, rows);
      case PackedKind::kF16:
        return float_kind<PackedKind::kF16>(job, rows);
      case PackedKind::kBF16:
        return float_kind<PackedKind::kBF16>(job, rows);
      case PackedKind::kQ4:
        return float_kind<PackedKind::kQ4>(job, rows);
      case PackedKind::kQ5:
        return float_kind<PackedKind::kQ5>(job, rows);
      case PackedKind::kQ6:
        return float_kind<PackedKind::kQ6>(job, rows);
      case PackedKind::kQ8:
        return float_kind<PackedKind::kQ8>(job, rows);
      case PackedKind::kMxfp4:
        return float_kind<PackedKind::kMxfp4>(job, rows);
      case PackedKind::kQ2:
        return float_kind<PackedKind::kQ2>(job, rows);
      case PackedKind::kTable:
        return float_kind<PackedKind::kTable>(job, rows);
      case PackedKind::kTable16:
        return float_kind<PackedKind::kTable16>(job, rows);
      case PackedKind::kF8:  // CUDA only
      case PackedKind::kF8F8:
        return;
    }
  }
};

}  // namespace warprow::cpu
