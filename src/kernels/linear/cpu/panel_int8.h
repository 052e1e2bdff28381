// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/linear/cpu/panel_access.h"

#include <cstddef>
#include <cstdint>

namespace warprow::cpu {

inline constexpr int kMaxIntBlock = 640;  // inputs unpacked at once, a multiple of 32

// Sums over int8 activations and quantised weights, and the rounding of activations to int8.
template <typename V>
struct Int8Panels {
  using Access = PanelAccess<V>;
  using F = typename V::F;
  using I = typename V::I;
  static constexpr int kLanes = Access::kLanes;

  // Initial value of an integer sum, which removes the weights' offset.
  template <PackedKind kKind>
  static I int_start(const PanelJob& job, const ActGroup& act) {
    if constexpr (V::kOffsetWeights) {
      const int32_t offset = Access::is_signed(kKind) ? 128 : job.zero_point;
      if (offset != 0) {
        return V::set1_s32(-offset * act.sum);
      }
    }
    return V::zero_int();
  }

  // Loads the g-th group_of(kind) inputs' weights in dot4's format: out[i] holds inputs 4i .. 4i + 3 of them.
  template <PackedKind kKind>
  static void load_group(const PanelJob& job,
                         const std::byte* panel,
                         int64_t g,
                         I (&out)[Access::group_of(kKind) / 4]) {
    constexpr int kVectors = Access::group_of(kKind) / 4;
    Access::template load_codes<kKind>(job, panel, g, out);
    if constexpr (V::kOffsetWeights == Access::is_signed(kKind)) {
      WR_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        if constexpr (Access::is_signed(kKind)) {
          out[i] = V::flip_sign_bits(out[i]);
        } else {
          out[i] = V::subtract_bytes(out[i], job.zero_point);
        }
      }
    }
  }

  // A few rows of one panel, directly from the packed weights.
  template <PackedKind kKind, int kGroup, int kRows>
  static void int8_direct(const PanelJob& job, const Int8Rows& rows, int64_t panel, int64_t row) {
    constexpr int kPart = Access::group_of(kKind);  // inputs whose weights are loaded at once
    constexpr int64_t kAhead = 8192;
    const std::byte* weights = Access::panel_at(job, panel);
    const int8_t* q = rows.q + row * rows.stride;
    const ActGroup* acts = rows.groups + row * rows.group_stride;
    const int64_t num_groups = job.k / kGroup;
    const int64_t bytes_per_group = job.panel_bytes / num_groups;
    // Prefetches run through the scales and into the next panel; hardware prefetchers stop at page
    // boundaries.
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
      I even[kRows];
      I odd[kRows];
      WR_UNROLL
      for (int r = 0; r < kRows; ++r) {
        even[r] = int_start<kKind>(job, acts[r * rows.group_stride + g]);
        odd[r] = V::zero_int();
      }
      for (int part = 0; part < kGroup / kPart; ++part) {
        I w[kPart / 4];
        load_group<kKind>(job, weights, g * (kGroup / kPart) + part, w);
        WR_UNROLL
        for (int r = 0; r < kRows; ++r) {
          const int8_t* a = q + r * rows.stride + g * kGroup + part * kPart;
          WR_UNROLL
          for (int i = 0; i < kPart / 4; i += 2) {
            even[r] = V::dot4(even[r], w[i], V::load_dword(a + 4 * i));
            odd[r] = V::dot4(odd[r], w[i + 1], V::load_dword(a + 4 * i + 4));
          }
        }
      }
      const auto add = Access::template group_factors<kKind>(job, weights, g);
      WR_UNROLL
      for (int r = 0; r < kRows; ++r) {
        acc[r] = add(acc[r], V::add_s32(even[r], odd[r]), acts[r * rows.group_stride + g]);
      }
    }
    WR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      Access::finish(job, row + r, panel, acc[r]);
    }
  }

  // Weights of kIntPanels panels, one block of inputs, in dot4's format.
  struct Int8Block {
    alignas(64) uint8_t w[V::kIntPanels][kMaxIntBlock * kLanes];
    alignas(64) float scale[V::kIntPanels][kMaxIntBlock / 16][kLanes];
    alignas(64) float bias[V::kIntPanels][kMaxIntBlock / 16][kLanes];
  };

  template <PackedKind kKind, int kGroup>
  static void unpack_int8(
      const PanelJob& job, int64_t panel, int64_t g0, int64_t g1, int slot, Int8Block& block) {
    constexpr int kPart = Access::group_of(kKind);
    constexpr int kParts = kGroup / kPart;
    const std::byte* weights = Access::panel_at(job, panel);
    uint8_t* dst = block.w[slot];
    for (int64_t part = g0 * kParts; part < g1 * kParts; ++part, dst += kPart * kLanes) {
      I w[kPart / 4];
      load_group<kKind>(job, weights, part, w);
      WR_UNROLL
      for (int i = 0; i < kPart / 4; ++i) {
        V::store_raw(dst + i * 64, w[i]);
      }
    }
    for (int64_t g = g0; g < g1; ++g) {
      Access::template unpack_factors<kKind>(
          job, weights, g, block.scale[slot][g - g0], block.bias[slot][g - g0]);
    }
  }

  template <PackedKind kKind, int kGroup, int kPanels, int kRows>
  [[gnu::noinline]] static void int8_tile(const PanelJob& job,
                                          const Int8Rows& rows,
                                          const Int8Block& block,
                                          const TilePlace& at) {
    F acc[kPanels][kRows];
    WR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      WR_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        acc[p][r] = Access::start(job, at.row + r, at.panel + p, at.begin);
      }
    }
    const int8_t* q = rows.q + at.row * rows.stride + at.begin * kGroup;
    const ActGroup* acts = rows.groups + at.row * rows.group_stride + at.begin;
    for (int64_t g = 0; g < at.end - at.begin; ++g) {
      I sum[kPanels][kRows];
      WR_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const I first = int_start<kKind>(job, acts[r * rows.group_stride + g]);
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
        const auto add =
            Access::unpacked_factors(job.has_bias, block.scale[p][g], block.bias[p][g]);
        WR_UNROLL
        for (int r = 0; r < kRows; ++r) {
          acc[p][r] = add(acc[p][r], sum[p][r], acts[r * rows.group_stride + g]);
        }
      }
    }
    WR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      WR_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        Access::finish(job, at.row + r, at.panel + p, acc[p][r]);
      }
    }
  }

  // Prefetches a tile's share of the next panels to L2, where unpacking them would wait for memory. The shares of all tiles
  // of all blocks are those panels; behind the job's last panels lie those that this worker mostly takes next.
  static void fetch_share(
      const std::byte* next, int64_t bytes, int64_t share, int64_t end_share, int64_t shares) {
    const std::byte* end = next + bytes * end_share / shares;
    for (const std::byte* p = next + bytes * share / shares; p < end; p += 64) {
      __builtin_prefetch(p, 0, 2);
    }
  }

  template <PackedKind kKind, int kGroup, int kPanels>
  static void int8_unpacked(const PanelJob& job, const Int8Rows& rows, int64_t panel) {
    Int8Block block;
    const int64_t groups_per_block = Access::block_len(job.k, kMaxIntBlock, kGroup) / kGroup;
    const int64_t num_groups = job.k / kGroup;
    const int64_t shares = (num_groups + groups_per_block - 1) / groups_per_block * job.num_rows;
    const std::byte* next = Access::panel_at(job, panel + kPanels);
    int64_t first_share = 0;
    for (int64_t g0 = 0; g0 < num_groups; g0 += groups_per_block, first_share += job.num_rows) {
      const int64_t g1 = g0 + groups_per_block < num_groups ? g0 + groups_per_block : num_groups;
      for (int p = 0; p < kPanels; ++p) {
        unpack_int8<kKind, kGroup>(job, panel + p, g0, g1, p, block);
      }
      for_each_even_tile<V::kIntRows>(job.num_rows, [&]<int kRows>(int64_t row) WR_INLINE_LAMBDA {
        const int64_t share = first_share + row;
        fetch_share(next, kPanels * job.panel_bytes, share, share + kRows, shares);
        int8_tile<kKind, kGroup, kPanels, kRows>(job, rows, block, {row, panel, g0, g1});
      });
    }
  }

  template <PackedKind kKind, int kGroup>
  static void int8_kind(const PanelJob& job, const Int8Rows& rows) {
    // Nibbles are unpacked so fast that two or three tiles may each do it, which spares a pass over the block.
    if (job.num_rows <= (kKind == PackedKind::kQ4 ? V::kDirectQ4Rows : V::kDirectRows)) {
      for (int64_t panel = 0; panel < job.num_panels; ++panel) {
        for_each_even_tile<V::kDirectTile>(
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

  static void run(const PanelJob& job, const Int8Rows& rows) {
    Access::with_int8_kind(
        job, [&]<PackedKind kKind, int kGroup> { int8_kind<kKind, kGroup>(job, rows); });
  }

  static ActGroup act_group(float scale, int32_t sum) {
    return {scale, scale * static_cast<float>(sum), sum};
  }
  // A group's scale, and the factor of its inputs, by their largest magnitude. The scale is it / 127; inputs that are all
  // below 1e-30 become zero. An infinity or a NaN makes the scale infinite or NaN, and with it every output of the row.
  struct Scaling {
    float scale;
    F factor;
  };
  static Scaling scaling_of(float amax) {
    const bool any = !(amax < 1e-30F);
    return {any ? amax / 127.0F : 0.0F, V::set1(any ? 127.0F / amax : 0.0F)};
  }
  // Quantises 32 inputs.
  static void quantise_group(const float* x, int8_t* q, ActGroup* by32, ActGroup* by16) {
    const F low = V::load(x);
    const F high = V::load(x + kLanes);
    const auto [scale, factor] = scaling_of(V::largest_magnitude(V::larger_magnitudes(low, high)));
    const int32_t sum_low = V::round_to_s8(q, V::mul(low, factor));
    const int32_t sum_high = V::round_to_s8(q + kLanes, V::mul(high, factor));
    *by32 = act_group(scale, sum_low + sum_high);
    if (by16 != nullptr) {
      by16[0] = act_group(scale, sum_low);
      by16[1] = act_group(scale, sum_high);
    }
  }
  static void quantise_row(const float* x, int64_t k, int8_t* q, ActGroup* by32, ActGroup* by16) {
    int64_t g = 0;
    const auto by16_at = [&](int64_t group) WR_INLINE_LAMBDA {
      return by16 == nullptr ? nullptr : by16 + 2 * group;
    };
    if constexpr (V::kQuantisesFour) {
      // The last four may overlap those before, with the same results.
      const int64_t groups = k / 32;
      for (; groups >= 4 && g < groups; g += 4) {
        g = g + 4 <= groups ? g : groups - 4;
        V::quantise_four(x + g * 32, q + g * 32, by32 + g, by16_at(g));
      }
    }
    for (; (g + 1) * 32 <= k; ++g) {
      quantise_group(x + g * 32, q + g * 32, by32 + g, by16_at(g));
    }
    if (g * 32 < k) {
      float rest[32] = {};
      for (int64_t i = g * 32; i < k; ++i) {
        rest[i - g * 32] = x[i];
      }
      quantise_group(rest, q + g * 32, by32 + g, by16_at(g));
    }
  }

  // Quantises kWideGroup inputs.
  static void quantise_wide_group(const float* x, int8_t* q, ActGroup* group) {
    F most = V::larger_magnitudes(V::load(x), V::load(x + kLanes));
    for (int i = 2 * kLanes; i < kWideGroup; i += kLanes) {
      most = V::larger_magnitudes(most, V::load(x + i));
    }
    const auto [scale, factor] = scaling_of(V::largest_magnitude(most));
    int32_t sum = 0;
    if constexpr (V::kQuantisesFour) {
      for (int i = 0; i < kWideGroup; i += 64) {
        sum += V::round_64_to_s8(q + i, x + i, factor);
      }
    } else {
      for (int i = 0; i < kWideGroup; i += kLanes) {
        sum += V::round_to_s8(q + i, V::mul(V::load(x + i), factor));
      }
    }
    *group = act_group(scale, sum);
  }
  static void quantise_wide_row(const float* x, int64_t k, int8_t* q, ActGroup* groups) {
    for (int64_t i = 0; i < k; i += kWideGroup) {
      quantise_wide_group(x + i, q + i, groups++);
    }
  }
};

}  // namespace warprow::cpu
