// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/linear/cpu/panel_access.h"
#include "kernels/simd/amx_tiles.h"

#include <cstddef>
#include <cstdint>

namespace warprow::cpu {

// Float sums over bf16 weights and bf16 activations with AMX, for every number of rows, since the tiles' order of sums is
// their own: a sum starts at out_bias or 0. For each 32 inputs, ascending, a chain of fused multiply-adds over the even
// inputs and one over the odd inputs start at 0; their sum is added. The last inputs are filled up with zeros.
//
// Mapping: up to two tiles of rows with two panels, whose sums stay in tiles over all inputs. The packed weights are
// tiles as they are.
template <typename V>
struct AmxBf16Panels {
  using Access = PanelAccess<V>;
  static constexpr int kLanes = Access::kLanes;
  static constexpr int64_t kStep = 32;  // inputs of a tile
  static constexpr int64_t kStepBytes = kStep / 2 * 64;
  static constexpr int64_t kAhead = 8192;

  // Sums in tiles 0 .. 3: tile of rows + 2 * panel. Rows in 4 and 5, weights in 6 and 7.
  static TileShapes tile_shapes(int64_t num_rows) {
    TileShapes shapes;
    for (int tile = 0; tile < 8; ++tile) {
      shapes.set(tile, tile < 6 ? num_rows : kTileRows, 64);
    }
    return shapes;
  }

  struct Tail {
    alignas(64) std::byte
        w[2][kStepBytes];  // the last inputs' weights of two panels, with zeros behind them
  };

  static void fill_tail(const PanelJob& job, int64_t panel, std::byte* to) {
    const int64_t first = job.k / kStep * kStepBytes;
    const int64_t bytes = (job.k + 1) / 2 * 64 - first;
    const std::byte* from = Access::panel_at(job, panel) + first;
    for (int64_t i = 0; i < kStepBytes; i += 64) {
      V::store_raw(to + i, i < bytes ? V::load_raw(from + i) : V::zero_int());
    }
  }

  // The first sums of a panel in tile kTile.
  template <int kTile>
  static void start(const PanelJob& job, int64_t panel) {
    if (job.out_bias == nullptr) {
      zero_tile<kTile>();
      return;
    }
    alignas(64) float bias[kLanes];
    V::store(bias, Access::load_some(job.out_bias + panel * kLanes, Access::num_valid(job, panel)));
    load_tile<kTile>(bias, 0);  // every row the same
  }

  template <int kTile>
  static void finish(const PanelJob& job, int64_t row, int64_t num_rows, int64_t panel) {
    const int n = Access::num_valid(job, panel);
    if (n == kLanes) {
      store_tile<kTile>(Access::y_at(job, row, panel), job.y_stride * 4);
      return;
    }
    alignas(64) float sums[kTileRows][kLanes];
    store_tile<kTile>(sums, 64);
    for (int64_t r = 0; r < num_rows; ++r) {
      Access::store_part(Access::y_at(job, row + r, panel), n, sums[r]);
    }
  }

  template <int kRowTiles, int kPanels>
  static void multiply(const uint16_t* (&x)[2], int64_t stride, const std::byte* (&w)[2]) {
    load_tile<4>(x[0], stride);
    load_tile<6>(w[0], 64);
    dot_bf16<0, 4, 6>();
    if constexpr (kRowTiles > 1) {
      load_tile<5>(x[1], stride);
      dot_bf16<1, 5, 6>();
    }
    if constexpr (kPanels > 1) {
      load_tile<7>(w[1], 64);
      dot_bf16<2, 4, 7>();
      if constexpr (kRowTiles > 1) {
        dot_bf16<3, 5, 7>();
      }
    }
  }

  // Tiles of `height` rows from rows[0] and rows[1] on.
  template <int kRowTiles, int kPanels>
  static void tiles(const PanelJob& job,
                    const Bf16Rows& rows,
                    int64_t panel,
                    const int64_t (&first)[2],
                    int64_t height,
                    const Tail& tail) {
    const uint16_t* x[2] = {rows.x + first[0] * rows.stride, rows.x + first[1] * rows.stride};
    const int64_t stride = rows.stride * 2;
    const std::byte* w[2] = {Access::panel_at(job, panel),
                             Access::panel_at(job, panel + kPanels - 1)};
    start<0>(job, panel);
    if constexpr (kRowTiles > 1) {
      start<1>(job, panel);
    }
    if constexpr (kPanels > 1) {
      start<2>(job, panel + 1);
      if constexpr (kRowTiles > 1) {
        start<3>(job, panel + 1);
      }
    }
    for (int64_t k = 0; k + kStep <= job.k; k += kStep) {
      if constexpr (kRowTiles == 1) {  // weights may come from memory
        for (int64_t i = 0; i < kStepBytes; i += 64) {
          __builtin_prefetch(w[0] + kAhead + i);
        }
        if constexpr (kPanels > 1) {
          for (int64_t i = 0; i < kStepBytes; i += 64) {
            __builtin_prefetch(w[1] + kAhead + i);
          }
        }
      }
      multiply<kRowTiles, kPanels>(x, stride, w);
      x[0] += kStep;
      x[1] += kStep;
      w[0] += kStepBytes;
      w[1] += kStepBytes;
    }
    if (job.k % kStep != 0) {
      w[0] = tail.w[0];
      w[1] = tail.w[1];
      multiply<kRowTiles, kPanels>(x, stride, w);
    }
    finish<0>(job, first[0], height, panel);
    if constexpr (kRowTiles > 1) {
      finish<1>(job, first[1], height, panel);
    }
    if constexpr (kPanels > 1) {
      finish<2>(job, first[0], height, panel + 1);
      if constexpr (kRowTiles > 1) {
        finish<3>(job, first[1], height, panel + 1);
      }
    }
  }

  template <int kPanels>
  static void panels(
      const PanelJob& job, const Bf16Rows& rows, int64_t panel, int64_t height, Tail& tail) {
    if (job.k % kStep != 0) {
      for (int p = 0; p < kPanels; ++p) {
        fill_tail(job, panel + p, tail.w[p]);
      }
    }
    // The last tile ends with the rows. What it has in common with the one before comes out the same.
    const int64_t last = job.num_rows - height;
    for (int64_t row = 0; row < job.num_rows; row += 2 * height) {
      const int64_t next = row + height;
      const int64_t first[2] = {row < last ? row : last, next < last ? next : last};
      if (next < job.num_rows) {
        tiles<2, kPanels>(job, rows, panel, first, height, tail);
      } else {
        tiles<1, kPanels>(job, rows, panel, first, height, tail);
      }
    }
  }

  static void run(const PanelJob& job, const Bf16Rows& rows) {
    const int64_t num_tiles = (job.num_rows + kTileRows - 1) / kTileRows;
    const int64_t height = (job.num_rows + num_tiles - 1) / num_tiles;
    const TileShapes shapes = tile_shapes(height);
    const ScopedTiles scope(shapes);
    Tail tail;
    int64_t panel = 0;
    for (; panel + 2 <= job.num_panels; panel += 2) {
      panels<2>(job, rows, panel, height, tail);
    }
    if (panel < job.num_panels) {
      panels<1>(job, rows, panel, height, tail);
    }
  }
};

}  // namespace warprow::cpu
