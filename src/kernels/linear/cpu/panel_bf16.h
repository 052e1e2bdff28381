// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/linear/cpu/panel_access.h"

#include <cstddef>
#include <cstdint>

namespace warprow::cpu {

inline constexpr int kMaxBf16Block = 320;  // inputs of a block, even

// Float sums over bf16 weights and bf16 activations, two inputs at a time. V::dot2 adds the product of the
// odd input, then that of the even one. A product of two bf16 is exact, so every V agrees bit for bit, with
// or without fused multiply-adds (except where values below 1e-38 are flushed to 0). The first sum takes the
// even pairs of a block; a second sum, from 0, takes the odd pairs. After each block of inputs the second sum
// is added to the first and starts at 0 again.
template <typename V>
struct Bf16Panels {
  using Access = PanelAccess<V>;
  using F = typename V::F;
  using I = typename V::I;
  static constexpr int64_t kPairBytes = 64;  // two inputs of 16 outputs

  static const int8_t* pairs_of(const Bf16Rows& rows, int64_t row, int64_t k) {
    return reinterpret_cast<const int8_t*>(rows.x + row * rows.stride + k);
  }

  // A few rows of one panel: each pair of weights is loaded once for all of them.
  template <int kRows>
  static void direct(const PanelJob& job, const Bf16Rows& rows, int64_t panel, int64_t row) {
    constexpr int64_t kAhead = 8192;
    const int64_t block = Access::block_len(job.k, kMaxBf16Block);
    const std::byte* weights = Access::panel_at(job, panel);
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
      const auto step = [&]<int kParity>(int64_t k) WR_INLINE_LAMBDA {
        const std::byte* p = weights + k / 2 * kPairBytes;
        __builtin_prefetch(p + kAhead);
        const I w = V::load_raw(p);
        WR_UNROLL
        for (int r = 0; r < kRows; ++r) {
          const auto x = V::load_dword(pairs_of(rows, row + r, k));
          acc[r][kParity] = V::dot2(acc[r][kParity], w, x);
        }
      };
      for_each_pair(k0, k1, step);
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
  // Calls step.template operator()<parity of the pair>(k) for k0 <= k < k1, k even.
  template <typename Step>
  static void for_each_pair(int64_t k0, int64_t k1, const Step& step) {
    int64_t k = k0;
    for (; k + 2 < k1; k += 4) {
      step.template operator()<0>(k);
      step.template operator()<1>(k + 2);
    }
    if (k < k1) {
      step.template operator()<0>(k);
    }
  }

  // A register tile over one block of inputs; the packed weights of the block stay in L1.
  template <int kPanels, int kRows>
  [[gnu::noinline]] static void tile(const PanelJob& job,
                                     const Bf16Rows& rows,
                                     const TilePlace& at) {
    F acc[kPanels][kRows][2];
    const std::byte* weights[kPanels];
    WR_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      weights[p] = Access::panel_at(job, at.panel + p);
    }
    WR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      WR_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        acc[p][r][0] = Access::start(job, at.row + r, at.panel + p, at.begin);
        acc[p][r][1] = V::zero();
      }
    }
    const int8_t* x = pairs_of(rows, at.row, 0);
    const int64_t stride = rows.stride * 2;
    const auto step = [&]<int kParity>(int64_t k) WR_INLINE_LAMBDA {
      I w[kPanels];
      WR_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        w[p] = V::load_raw(weights[p] + k / 2 * kPairBytes);
      }
      WR_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const auto a = V::load_dword(x + r * stride + k * 2);
        WR_UNROLL
        for (int p = 0; p < kPanels; ++p) {
          acc[p][r][kParity] = V::dot2(acc[p][r][kParity], w[p], a);
        }
      }
    };
    for_each_pair(at.begin, at.end, step);
    WR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      WR_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        Access::finish(job, at.row + r, at.panel + p, V::add(acc[p][r][0], acc[p][r][1]));
      }
    }
  }

  template <int kPanels>
  static void tiles(const PanelJob& job, const Bf16Rows& rows, int64_t panel) {
    const int64_t block = Access::block_len(job.k, kMaxBf16Block);
    for (int64_t k0 = 0; k0 < job.k; k0 += block) {
      const int64_t k1 = k0 + block < job.k ? k0 + block : job.k;
      for_each_even_tile<V::kFloatRows>(job.num_rows, [&]<int kRows>(int64_t row) WR_INLINE_LAMBDA {
        tile<kPanels, kRows>(job, rows, {row, panel, k0, k1});
      });
    }
  }

  // A block of inputs as float32, for a V without a dot product of bf16 pairs: weights of a few panels, and some rows.
  static constexpr int kWidePanels = V::kDotsPairs ? 1 : V::kFloatPanels;
  static constexpr int kWideRows = 2 * V::kFloatRows;  // of a register tile
  static constexpr int kChunkRows = 128;
  struct WideBlock {
    alignas(64) float w[kWidePanels][kMaxBf16Block][16];
    alignas(64) float x[kChunkRows][kMaxBf16Block];
  };

  // A register tile over one block. One sum at a time is in registers: of the even pairs, then of the odd ones.
  template <int kPanels, int kRows>
  [[gnu::noinline]] static void wide_tile(const PanelJob& job,
                                          const WideBlock& block,
                                          const float* x,
                                          const TilePlace& at) {
    F even[kPanels][kRows];
    F acc[kPanels][kRows];
    WR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      WR_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        acc[p][r] = Access::start(job, at.row + r, at.panel + p, at.begin);
      }
    }
    const int64_t len = (at.end - at.begin + 1) / 2 * 2;
    const auto add_input = [&](int64_t k) WR_INLINE_LAMBDA {
      F w[kPanels];
      WR_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        w[p] = V::load(block.w[p][k]);
      }
      WR_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const F value = V::set1(x[r * kMaxBf16Block + k]);
        WR_UNROLL
        for (int p = 0; p < kPanels; ++p) {
          acc[p][r] = V::fma(w[p], value, acc[p][r]);
        }
      }
    };
    const auto add_pairs = [&](int64_t first) WR_INLINE_LAMBDA {
      for (int64_t k = first; k < len; k += 4) {
        add_input(k + 1);
        add_input(k);
      }
    };
    add_pairs(0);
    WR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      WR_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        even[p][r] = acc[p][r];
        acc[p][r] = V::zero();
      }
    }
    add_pairs(2);
    WR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      WR_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        Access::finish(job, at.row + r, at.panel + p, V::add(even[p][r], acc[p][r]));
      }
    }
  }

  static void widen_weights(const std::byte* panel, int64_t k0, int64_t k1, float (*to)[16]) {
    for (int64_t k = k0; k < k1; k += 2, to += 2) {
      const I pair = V::load_raw(panel + k / 2 * kPairBytes);
      V::store(to[0], V::low_bf16(pair));
      V::store(to[1], V::high_bf16(pair));
    }
  }
  // k0 is even; a row is padded with zeros behind its last input.
  static void widen_row(const uint16_t* x, int64_t k0, int64_t k1, float* to) {
    for (int64_t k = k0; k < (k1 + 1) / 2 * 2; ++k) {
      const uint32_t bits = uint32_t{x[k]} << 16;
      __builtin_memcpy(to + (k - k0), &bits, sizeof bits);
    }
  }

  // The tiles of kPanels panels over the block's rows.
  template <int kPanels>
  static void wide_tiles(const PanelJob& job,
                         WideBlock& block,
                         int64_t num_rows,
                         const TilePlace& at) {
    for (int p = 0; p < kPanels; ++p) {
      widen_weights(Access::panel_at(job, at.panel + p), at.begin, at.end, block.w[p]);
    }
    for_each_even_tile<kWideRows>(num_rows, [&]<int kRows>(int64_t row) WR_INLINE_LAMBDA {
      wide_tile<kPanels, kRows>(
          job, block, block.x[row], {at.row + row, at.panel, at.begin, at.end});
    });
  }
  static void wide(const PanelJob& job, const Bf16Rows& rows) {
    WideBlock block;
    const int64_t len = Access::block_len(job.k, kMaxBf16Block);
    for_each_even_part(job.num_rows, kChunkRows, [&](int64_t row, int64_t height) {
      for (int64_t k0 = 0; k0 < job.k; k0 += len) {
        const int64_t k1 = k0 + len < job.k ? k0 + len : job.k;
        for (int64_t r = 0; r < height; ++r) {
          widen_row(rows.x + (row + r) * rows.stride, k0, k1, block.x[r]);
        }
        int64_t panel = 0;
        for (; panel + kWidePanels <= job.num_panels; panel += kWidePanels) {
          wide_tiles<kWidePanels>(job, block, height, {row, panel, k0, k1});
        }
        for (; panel < job.num_panels; ++panel) {
          wide_tiles<1>(job, block, height, {row, panel, k0, k1});
        }
      }
    });
  }

  static void run(const PanelJob& job, const Bf16Rows& rows) {
    int64_t panel = 0;
    if (job.num_rows <= V::kDirectRows) {
      for (; panel < job.num_panels; ++panel) {
        for_each_even_tile<V::kDirectTile>(
            job.num_rows,
            [&]<int kRows>(int64_t row) WR_INLINE_LAMBDA { direct<kRows>(job, rows, panel, row); });
      }
    } else if constexpr (V::kDotsPairs) {
      for (; panel + V::kFloatPanels <= job.num_panels; panel += V::kFloatPanels) {
        tiles<V::kFloatPanels>(job, rows, panel);
      }
      for (; panel < job.num_panels; ++panel) {
        tiles<1>(job, rows, panel);
      }
    } else {
      wide(job, rows);
    }
  }

  static void round_some(const float* x, int64_t n, uint16_t* out) {
    for (int64_t i = 0; i < n; ++i) {
      uint32_t bits;
      __builtin_memcpy(&bits, x + i, sizeof bits);
      const uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
      const uint32_t quiet = (bits >> 16) | 0x40U;
      out[i] = static_cast<uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? quiet : rounded);
    }
  }

  // Rounds to nearest, ties to even; NaN stays NaN.
  static void round_row(const float* x, int64_t k, int64_t step, uint16_t* out) {
    for (; k >= 32; k -= 32, x += 32, out += step) {
      round_some(x, 32, out);
    }
    if (k > 0) {
      round_some(x, k, out);
      for (int64_t i = k; i < 32; ++i) {
        out[i] = 0;
      }
    }
  }
};

}  // namespace warprow::cpu
