// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/linear/cpu/panel_access.h"

#include <cstddef>
#include <cstdint>

namespace warprow::cpu {

// Sums over int8 activations and quantised weights for AVX2. Its product of bytes, vpmaddubsw, multiplies u8 by s8, adds
// two neighbours and saturates at s16. Widening each result to s32 would take as long as multiplying. So weights are
// taken as the codes that are stored, u8 with their zero point, and as many products as surely fit are added up in s16.
// Their sum is widened once, and the zero point times the sum of the inputs is subtracted from a group's sum. Bytes of
// kQ8 and of tables are too large for that: few rows multiply magnitudes and move the signs to the inputs; for many rows both
// sides are widened to s16 once, and their product, vpmaddwd, is s32. Everything is exact, and the float operations are those
// of GroupFactors, so that the bits are those of Int8Panels.
//
// Mapping: up to kDirectTile rows of a panel multiply the packed weights as they are unpacked. For more rows a block of
// inputs is unpacked once, and tiles of kShortRows rows multiply it.
template <typename V>
struct ShortInt8Panels {
  using Access = PanelAccess<V>;
  using F = typename V::F;
  using I = typename V::I;
  static constexpr int kLanes = Access::kLanes;
  static constexpr int kMaxBlock = 640;      // inputs unpacked at once, a multiple of 32
  static constexpr int kMaxWideBlock = 320;  // the same of signed bytes
  static constexpr int kChunkRows = 128;     // of them, widened at once

  // Steps of four inputs whose products are added up in s16: 2 * 127 * (largest code) * steps is at most 32767.
  static constexpr int steps_of(PackedKind kind) {
    switch (kind) {
      case PackedKind::kQ5:     // codes up to 31
      case PackedKind::kMxfp4:  // 24
        return 4;
      case PackedKind::kQ6:  // 63
        return 2;
      case PackedKind::kQ2:  // 3, and the whole group
        return 4;
      case PackedKind::kQ8:  // magnitudes up to 128
      case PackedKind::kTable:
      case PackedKind::kTable16:
        return 1;
      default:  // 15
        return 8;
    }
  }
  // The codes' zero point, unless the job's is 0.
  static constexpr int zero_of(PackedKind kind) {
    switch (kind) {
      case PackedKind::kQ4:
        return 8;
      case PackedKind::kQ5:
        return 16;
      case PackedKind::kQ6:
        return 32;
      case PackedKind::kMxfp4:
        return kMxfp4Zero;
      default:
        return 0;
    }
  }

  // for_each_code visits steps in this order: nibbles in turn from both halves of the group.
  template <PackedKind kKind>
  static constexpr int step_at(int visit) {
    return kKind == PackedKind::kQ8 || kKind == PackedKind::kQ2
               ? visit
               : visit / 2 + visit % 2 * Access::template num_raws<kKind>;
  }
  template <PackedKind kKind>
  static constexpr int visit_of(int step) {
    int visit = 0;
    while (step_at<kKind>(visit) != step) {
      ++visit;
    }
    return visit;
  }

  template <PackedKind kKind>
  static I without_zero(const PanelJob& job, I sum, const ActGroup& act) {
    if constexpr (zero_of(kKind) != 0) {
      if (job.zero_point != 0) {
        return V::template subtract_times<zero_of(kKind)>(sum, &act.sum);
      }
    }
    return sum;
  }

  // A few rows of one panel, directly from the packed weights.
  template <PackedKind kKind, int kGroup, int kRows>
  static void direct(const PanelJob& job, const Int8Rows& rows, int64_t panel, int64_t row) {
    constexpr int kPart = Access::group_of(kKind);  // inputs whose codes are loaded at once
    constexpr int kParts = kGroup / kPart;
    constexpr int kRun = steps_of(kKind);
    constexpr int64_t kAhead = 2048;
    const std::byte* weights = Access::panel_at(job, panel);
    const int8_t* q = rows.q + row * rows.stride;
    const int64_t stride = rows.stride;
    const ActGroup* acts = rows.groups + row * rows.group_stride;
    const int64_t num_groups = job.k / kGroup;
    const int64_t bytes_per_group = job.panel_bytes / num_groups;
    // Prefetches run through the scales and into the next panel; hardware prefetchers stop at page boundaries.
    const std::byte* ahead = weights + kAhead;
    F acc[kRows];
    WR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      acc[r] = Access::start(job, row + r, panel, 0);
    }
    for (int64_t g = 0; g < num_groups; ++g) {
      for (const std::byte* end = ahead + bytes_per_group; ahead < end; ahead += 64) {
        __builtin_prefetch(ahead);
      }
      I sum[kRows];
      if constexpr (kParts > 1) {
        WR_UNROLL
        for (int r = 0; r < kRows; ++r) {
          sum[r] = V::zero_int();
        }
      }
      for (int part = 0; part < kParts; ++part, q += kPart) {
        I shorts[kRows];
        Access::template for_each_code<kKind>(
            job, weights, g * kParts + part, [&]<int kStep>(I codes) WR_INLINE_LAMBDA {
              constexpr int kVisit = visit_of<kKind>(kStep);
              WR_UNROLL
              for (int r = 0; r < kRows; ++r) {
                const auto a = V::load_dword(q + r * stride + 4 * kStep);
                const I products =
                    Access::is_signed(kKind) ? V::multiply_s8(codes, a) : V::multiply_u8(codes, a);
                shorts[r] = kVisit % kRun == 0 ? products : V::add_s16(shorts[r], products);
                if constexpr (kVisit % kRun == kRun - 1) {
                  const I widened = V::widen(shorts[r]);
                  constexpr bool kFirst = kVisit == kRun - 1 && kParts == 1;
                  sum[r] = kFirst ? widened : V::add_s32(sum[r], widened);
                }
              }
            });
      }
      const auto add = Access::template group_factors<kKind>(job, weights, g);
      WR_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const ActGroup& act = acts[r * rows.group_stride + g];
        acc[r] = add(acc[r], without_zero<kKind>(job, sum[r], act), act);
      }
    }
    WR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      Access::finish(job, row + r, panel, acc[r]);
    }
  }

  // One panel's weights of a block of inputs: a vector of codes for each step, or of signed bytes two of s16.
  struct Block {
    alignas(64) uint8_t w[kMaxBlock * kLanes];
    alignas(64) float scale[kMaxBlock / 16][kLanes];
    alignas(64) float bias[kMaxBlock / 16][kLanes];
  };
  static_assert(2 * kMaxWideBlock <= kMaxBlock);

  template <PackedKind kKind, int kGroup>
  static void unpack(const PanelJob& job, int64_t panel, int64_t g0, int64_t g1, Block& block) {
    constexpr int kPart = Access::group_of(kKind);
    constexpr int kParts = kGroup / kPart;
    const std::byte* weights = Access::panel_at(job, panel);
    uint8_t* dst = block.w;
    for (int64_t part = g0 * kParts; part < g1 * kParts; ++part) {
      Access::template for_each_code<kKind>(
          job, weights, part, [&]<int kStep>(I codes) WR_INLINE_LAMBDA {
            if constexpr (Access::is_signed(kKind)) {
              V::store_raw(dst + 128 * kStep, V::low_bytes_to_s16(codes));
              V::store_raw(dst + 128 * kStep + 64, V::high_bytes_to_s16(codes));
            } else {
              V::store_raw(dst + 64 * visit_of<kKind>(kStep), codes);
            }
          });
      dst += kPart * (Access::is_signed(kKind) ? 32 : 16);
    }
    for (int64_t g = g0; g < g1; ++g) {
      Access::template unpack_factors<kKind>(
          job, weights, g, block.scale[g - g0], block.bias[g - g0]);
    }
  }

  template <PackedKind kKind, int kRows>
  [[gnu::noinline]] static void tile(const PanelJob& job,
                                     const Int8Rows& rows,
                                     const Block& block,
                                     const TilePlace& at) {
    constexpr int kGroup = Access::group_of(kKind);
    constexpr int kRun = steps_of(kKind);
    constexpr int kRuns = kGroup / 4 / kRun;
    const int64_t stride = rows.stride;
    const int8_t* q = rows.q + at.row * stride + at.begin * kGroup;
    const ActGroup* acts = rows.groups + at.row * rows.group_stride + at.begin;
    const uint8_t* w = block.w;
    F acc[kRows];
    WR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      acc[r] = Access::start(job, at.row + r, at.panel, at.begin);
    }
    for (int64_t g = 0; g < at.end - at.begin; ++g, q += kGroup) {
      I sum[kRows];
      WR_UNROLL
      for (int run = 0; run < kRuns; ++run) {
        I shorts[kRows];
        WR_UNROLL
        for (int i = 0; i < kRun; ++i, w += 64) {
          const I codes = V::load_raw(w);
          WR_UNROLL
          for (int r = 0; r < kRows; ++r) {
            const auto a = V::load_dword(q + r * stride + 4 * step_at<kKind>(run * kRun + i));
            const I products = V::multiply_u8(codes, a);
            shorts[r] = i == 0 ? products : V::add_s16(shorts[r], products);
          }
        }
        WR_UNROLL
        for (int r = 0; r < kRows; ++r) {
          const I widened = V::widen(shorts[r]);
          sum[r] = run == 0 ? widened : V::add_s32(sum[r], widened);
        }
      }
      const auto add = Access::unpacked_factors(job.has_bias, block.scale[g], block.bias[g]);
      WR_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const ActGroup& act = acts[r * rows.group_stride + g];
        acc[r] = add(acc[r], without_zero<kKind>(job, sum[r], act), act);
      }
    }
    WR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      Access::finish(job, at.row + r, at.panel, acc[r]);
    }
  }

  template <PackedKind kKind, int kGroup>
  static void tiles(const PanelJob& job, const Int8Rows& rows) {
    Block block;
    const int64_t block_groups = Access::block_len(job.k, kMaxBlock) / kGroup;
    const int64_t num_groups = job.k / kGroup;
    for (int64_t panel = 0; panel < job.num_panels; ++panel) {
      for (int64_t g0 = 0; g0 < num_groups; g0 += block_groups) {
        const int64_t g1 = g0 + block_groups < num_groups ? g0 + block_groups : num_groups;
        unpack<kKind, kGroup>(job, panel, g0, g1, block);
        for_each_even_tile<V::kShortRows>(
            job.num_rows, [&]<int kRows>(int64_t row) WR_INLINE_LAMBDA {
              tile<kKind, kRows>(job, rows, block, {row, panel, g0, g1});
            });
      }
    }
  }

  // Rows of a block of inputs as s16.
  struct WideRows {
    alignas(64) int16_t x[kChunkRows][kMaxWideBlock];
  };

  // Signed bytes. x: the tile's rows, from the block's first input on.
  template <PackedKind kKind, int kGroup, int kRows>
  [[gnu::noinline]] static void wide_tile(const PanelJob& job,
                                          const ActGroup* acts,
                                          int64_t group_stride,
                                          const int16_t (*x)[kMaxWideBlock],
                                          const Block& block,
                                          const TilePlace& at) {
    constexpr int kPart = Access::group_of(kKind);
    constexpr int kParts = kGroup / kPart;
    const uint8_t* w = block.w;
    const int16_t* first = x[0];
    F acc[kRows];
    WR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      acc[r] = Access::start(job, at.row + r, at.panel, at.begin);
    }
    for (int64_t g = 0; g < at.end - at.begin; ++g) {
      I sum[kRows];
      if constexpr (kParts > 1) {
        WR_UNROLL
        for (int r = 0; r < kRows; ++r) {
          sum[r] = V::zero_int();
        }
      }
      for (int part = 0; part < kParts; ++part, first += kPart) {
        WR_UNROLL
        for (int i = 0; i < kPart / 2; ++i, w += 64) {
          const I weights = V::load_raw(w);
          WR_UNROLL
          for (int r = 0; r < kRows; ++r) {
            const I products =
                V::multiply_s16(weights, V::load_dword(first + r * kMaxWideBlock + 2 * i));
            sum[r] = i == 0 && kParts == 1 ? products : V::add_s32_pinned(sum[r], products);
          }
        }
      }
      const auto add = Access::unpacked_factors(job.has_bias, block.scale[g], block.bias[g]);
      WR_UNROLL
      for (int r = 0; r < kRows; ++r) {
        acc[r] = add(acc[r], sum[r], acts[r * group_stride + g]);
      }
    }
    WR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      Access::finish(job, at.row + r, at.panel, acc[r]);
    }
  }

  template <PackedKind kKind, int kGroup>
  static void wide_tiles(const PanelJob& job, const Int8Rows& rows) {
    Block block;
    WideRows wide;
    constexpr int kMaxLen = kMaxWideBlock / kGroup * kGroup;
    const int64_t block_groups = Access::block_len(job.k, kMaxLen, kGroup) / kGroup;
    const int64_t num_groups = job.k / kGroup;
    for_each_even_part(job.num_rows, kChunkRows, [&](int64_t row, int64_t height) {
      for (int64_t g0 = 0; g0 < num_groups; g0 += block_groups) {
        const int64_t g1 = g0 + block_groups < num_groups ? g0 + block_groups : num_groups;
        for (int64_t r = 0; r < height; ++r) {
          const int8_t* q = rows.q + (row + r) * rows.stride;
          for (int64_t i = g0 * kGroup; i < g1 * kGroup; ++i) {
            wide.x[r][i - g0 * kGroup] = q[i];
          }
        }
        for (int64_t panel = 0; panel < job.num_panels; ++panel) {
          unpack<kKind, kGroup>(job, panel, g0, g1, block);
          for_each_even_tile<V::kShortRows>(height, [&]<int kRows>(int64_t r) WR_INLINE_LAMBDA {
            wide_tile<kKind, kGroup, kRows>(job,
                                            rows.groups + (row + r) * rows.group_stride + g0,
                                            rows.group_stride,
                                            wide.x + r,
                                            block,
                                            {row + r, panel, g0, g1});
          });
        }
      }
    });
  }

  template <PackedKind kKind, int kGroup>
  static void int8_kind(const PanelJob& job, const Int8Rows& rows) {
    if (job.num_rows > V::kDirectRows) {
      if constexpr (Access::is_signed(kKind)) {
        wide_tiles<kKind, kGroup>(job, rows);
      } else {
        tiles<kKind, kGroup>(job, rows);
      }
      return;
    }
    for (int64_t panel = 0; panel < job.num_panels; ++panel) {
      for_each_even_tile<V::kDirectTile>(job.num_rows,
                                         [&]<int kRows>(int64_t row) WR_INLINE_LAMBDA {
                                           direct<kKind, kGroup, kRows>(job, rows, panel, row);
                                         });
    }
  }

  static void run(const PanelJob& job, const Int8Rows& rows) {
    Access::with_int8_kind(
        job, [&]<PackedKind kKind, int kGroup> { int8_kind<kKind, kGroup>(job, rows); });
  }
};

}  // namespace warprow::cpu
