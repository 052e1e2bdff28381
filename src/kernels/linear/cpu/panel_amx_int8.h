// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/linear/cpu/panel_access.h"
#include "kernels/simd/amx_tiles.h"

#include <cstddef>
#include <cstdint>

namespace warprow::cpu {

// Sums over int8 activations and weights in groups of 32 with AMX, for many rows. The integer sum of a group is exact in
// whatever order, and the float operations on it are those of Int8Panels, so that the bits are the same.
//
// Mapping: up to 16 rows and one panel at a time. For a block of inputs a first pass of tile instructions writes the
// [row][output] sums of each group to memory; then a second pass scales and adds them. The passes are separate because a core
// that runs tile instructions does half as many vector operations a cycle.
template <typename V>
struct AmxInt8Panels {
  using Access = PanelAccess<V>;
  using F = typename V::F;
  using I = typename V::I;
  static constexpr int kLanes = Access::kLanes;
  static constexpr int kGroup = 32;
  static constexpr int kMaxBlock = 640;  // inputs unpacked at once, a multiple of 32

  // One panel's weights of a block of inputs, and the sums of up to 16 rows.
  struct Block {
    alignas(64) int8_t w[kMaxBlock * kLanes];
    alignas(64) float scale[kMaxBlock / kGroup][kLanes];
    alignas(64) float bias[kMaxBlock / kGroup][kLanes];
    alignas(64) int32_t sums[kMaxBlock / kGroup][kTileRows][kLanes];
  };

  // Returns the groups' weights as s8 without zero point; those of kQ8 are stored so, those of a table come so.
  template <PackedKind kKind>
  static const int8_t* unpack(
      const PanelJob& job, int64_t panel, int64_t g0, int64_t g1, Block& block) {
    constexpr int kVectors = Access::group_of(kKind) / 4;
    const std::byte* weights = Access::panel_at(job, panel);
    for (int64_t g = g0; g < g1; ++g) {
      if constexpr (kKind != PackedKind::kQ8) {
        I w[kVectors];
        Access::template load_codes<kKind>(job, weights, g, w);
        WR_UNROLL
        for (int i = 0; i < kVectors; ++i) {
          V::store_raw(block.w + (g - g0) * kGroup * kLanes + i * 64,
                       Access::is_signed(kKind) ? w[i] : V::subtract_bytes(w[i], job.zero_point));
        }
      }
      Access::template unpack_factors<kKind>(
          job, weights, g, block.scale[g - g0], block.bias[g - g0]);
    }
    return kKind == PackedKind::kQ8
               ? reinterpret_cast<const int8_t*>(weights) + g0 * kGroup * kLanes
               : block.w;
  }

  // Tiles: sums of four groups in turn in 0 .. 3; rows in 4 and 6, weights in 5 and 7.
  static TileShapes tile_shapes(int64_t num_rows) {
    TileShapes shapes;
    for (int tile = 0; tile < 4; ++tile) {
      shapes.set(tile, num_rows, 64);
    }
    for (int tile = 4; tile < 8; tile += 2) {
      shapes.set(tile, num_rows, kGroup);
      shapes.set(tile + 1, kGroup / 4, 64);
    }
    return shapes;
  }

  // The block's groups of up to 16 rows and one panel.
  struct Groups {
    const int8_t* q;
    int64_t q_stride;
    const int8_t* w;
    int64_t num_groups;
    int32_t (*sums)[kTileRows][kLanes];
  };

  // Multiplies group g into tile kTile and stores the tile of the group before: a store right after its own product would
  // delay the products that follow. Returns true if g is the block's last group, whose tile is then stored too.
  template <int kTile>
  static bool multiply_group(const Groups& c, int64_t g) {
    constexpr int kRowsTile = 4 + kTile % 2 * 2;
    load_tile<kRowsTile>(c.q + g * kGroup, c.q_stride);
    load_tile<kRowsTile + 1>(c.w + g * kGroup * kLanes, 64);
    zero_tile<kTile>();
    dot_s8<kTile, kRowsTile, kRowsTile + 1>();
    if (g > 0) {
      store_tile<(kTile + 3) % 4>(c.sums[g - 1], 64);
    }
    const bool last = g + 1 == c.num_groups;
    if (last) {
      store_tile<kTile>(c.sums[g], 64);
    }
    return last;
  }
  static void multiply(const Groups& c) {
    for (int64_t g = 0; !(multiply_group<0>(c, g) || multiply_group<1>(c, g + 1) ||
                          multiply_group<2>(c, g + 2) || multiply_group<3>(c, g + 3));
         g += 4) {
    }
  }

  // Adds the scaled sums of groups [at.begin, at.end) to kRows rows. sums: from the first of the rows on.
  template <int kRows, bool kBias>
  [[gnu::noinline]] static void scale_rows(const PanelJob& job,
                                           const Int8Rows& rows,
                                           const TilePlace& at,
                                           const Block& block,
                                           const int32_t* sums) {
    F acc[kRows];
    WR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      acc[r] = Access::start(job, at.row + r, at.panel, at.begin);
    }
    const int64_t stride = rows.group_stride;
    const ActGroup* acts = rows.groups + at.row * stride + at.begin;
    for (int64_t g = 0; g < at.end - at.begin; ++g) {
      const auto add = Access::unpacked_factors(kBias, block.scale[g], block.bias[g]);
      WR_UNROLL
      for (int r = 0; r < kRows; ++r) {
        acc[r] =
            add(acc[r], V::load_raw(sums + (g * kTileRows + r) * kLanes), acts[r * stride + g]);
      }
    }
    WR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      Access::finish(job, at.row + r, at.panel, acc[r]);
    }
  }

  // `height` rows of a panel over a block, whose unpacked weights are w.
  static void tile(const PanelJob& job,
                   const Int8Rows& rows,
                   const TilePlace& at,
                   int64_t height,
                   const int8_t* w,
                   Block& block) {
    multiply({rows.q + at.row * rows.stride + at.begin * kGroup,
              rows.stride,
              w,
              at.end - at.begin,
              block.sums});
    const auto scale = [&]<int kRows>(int64_t r) WR_INLINE_LAMBDA {
      const TilePlace place{at.row + r, at.panel, at.begin, at.end};
      const auto scaled = job.has_bias ? scale_rows<kRows, true> : scale_rows<kRows, false>;
      scaled(job, rows, place, block, block.sums[0][r]);
    };
    for_each_even_tile<6>(height, scale);
  }

  template <PackedKind kKind>
  static void int8_kind(const PanelJob& job, const Int8Rows& rows) {
    // Tiles of nearly equal height, the lower ones first. All have the configuration of the highest, so a lower tile has one
    // row more than it needs: the next tile's first row, whose sums are not used.
    const int64_t num_tiles = (job.num_rows + kTileRows - 1) / kTileRows;
    const int64_t height = job.num_rows / num_tiles;
    const int64_t num_high = job.num_rows % num_tiles;
    const TileShapes shapes = tile_shapes(height + (num_high > 0 ? 1 : 0));
    const ScopedTiles tiles(shapes);
    Block block;
    const int64_t groups_per_block = Access::block_len(job.k, kMaxBlock) / kGroup;
    const int64_t num_groups = job.k / kGroup;
    for (int64_t panel = 0; panel < job.num_panels; ++panel) {
      for (int64_t g0 = 0; g0 < num_groups; g0 += groups_per_block) {
        const int64_t g1 = g0 + groups_per_block < num_groups ? g0 + groups_per_block : num_groups;
        const int8_t* w = unpack<kKind>(job, panel, g0, g1, block);
        for (int64_t row = 0, t = 0; t < num_tiles; ++t) {
          const int64_t rows_here = height + (t >= num_tiles - num_high ? 1 : 0);
          tile(job, rows, {row, panel, g0, g1}, rows_here, w, block);
          row += rows_here;
        }
      }
    }
  }

  static void run(const PanelJob& job, const Int8Rows& rows) {
    switch (job.kind) {
      case PackedKind::kQ4:
        return int8_kind<PackedKind::kQ4>(job, rows);
      case PackedKind::kQ5:
        return int8_kind<PackedKind::kQ5>(job, rows);
      case PackedKind::kMxfp4:
        return int8_kind<PackedKind::kMxfp4>(job, rows);
      case PackedKind::kTable:
        return int8_kind<PackedKind::kTable>(job, rows);
      default:
        return int8_kind<PackedKind::kQ8>(job, rows);
    }
  }
};

}  // namespace warprow::cpu
