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
// tiles as they are, and so are rows in tiles (Bf16Rows). Rows one after the other are loaded at their stride, which is
// slower.
template <typename V>
struct AmxBf16Panels {
  using Access = PanelAccess<V>;
  static constexpr int kLanes = Access::kLanes;
  static constexpr int64_t kStep = 32;  // inputs of a tile
  static constexpr int64_t kStepBytes = kStep / 2 * 64;
  static constexpr int64_t kAhead = 8192;

  // Rounds to nearest, ties to even; NaN stays NaN. Values below 1e-38 become 0, which tiles take them for anyway.
  static void round_row(const float* x, int64_t k, int64_t step, uint16_t* out) {
    for (; k >= kStep; k -= kStep, x += kStep, out += step) {
      V::store_bf16(out, V::load(x), V::load(x + kLanes));
    }
    if (k > 0) {
      float rest[kStep];
      for (int64_t i = 0; i < kStep; ++i) {
        rest[i] = i < k ? x[i] : 0.0F;
      }
      V::store_bf16(out, V::load(rest), V::load(rest + kLanes));
    }
  }

  // Sums in tiles 0 .. 3: tile of rows + 2 * panel. Rows in 4 and 5, weights in 6 and 7.
  static TileShapes tile_shapes(int64_t num_rows) {
    TileShapes shapes;
    for (int tile = 0; tile < 8; ++tile) {
      shapes.set(tile, tile < 6 ? num_rows : kTileRows, 64);
    }
    return shapes;
  }

  static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

  // The initial sums of two panels, and their last weights. They are stored long before a tile is loaded from them: a load
  // right after a store to the same bytes would wait for all earlier stores to drain, those of the last sums too.
  struct Ends {
    alignas(64) float bias[2][kLanes];
    alignas(64) std::byte w[2][kStepBytes];  // weights of the last inputs, with zeros behind them
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
  static void start(const PanelJob& job, const Ends& ends) {
    if (job.out_bias == nullptr) {
      zero_tile<kTile>();
    } else {
      load_tile<kTile>(ends.bias[kTile / 2], 0);  // every row the same
    }
  }

  // The first num_rows of a tile's `height` rows.
  template <int kTile>
  static void finish(
      const PanelJob& job, int64_t row, int64_t num_rows, int64_t height, int64_t panel) {
    const int n = Access::num_valid(job, panel);
    if (n == kLanes && num_rows == height) {
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

  // Tiles of `height` rows, of which the first `count` are wanted.
  struct RowTiles {
    int64_t first[2];
    int64_t count[2];
    int64_t height;
    // Prefetched with each 32 inputs: these weights of the next panels, to L2, and as many rows of y.
    const std::byte* ahead;
    int64_t ahead_bytes;
    int64_t y_rows;
  };

  template <int kRowTiles, int kPanels>
  static void tiles(const PanelJob& job,
                    const Bf16Rows& rows,
                    int64_t panel,
                    const RowTiles& at,
                    const Ends& ends) {
    const uint16_t* x[2] = {rows.x + at.first[0] * rows.stride, rows.x + at.first[1] * rows.stride};
    const int64_t stride = (rows.tile_rows > 0 ? kStep : rows.stride) * 2;
    const std::byte* ahead = at.ahead;
    float* y = Access::y_at(job, at.first[0], panel);
    const float* y_end = y + (at.count[0] + at.count[1]) * job.y_stride;
    const int64_t x_step = rows.tile_rows > 0 ? kStep * rows.tile_rows : kStep;
    const std::byte* w[2] = {Access::panel_at(job, panel),
                             Access::panel_at(job, panel + kPanels - 1)};
    start<0>(job, ends);
    if constexpr (kRowTiles > 1) {
      start<1>(job, ends);
    }
    if constexpr (kPanels > 1) {
      start<2>(job, ends);
      if constexpr (kRowTiles > 1) {
        start<3>(job, ends);
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
      if constexpr (kRowTiles > 1) {
        for (int64_t i = 0; i < at.ahead_bytes; i += 64) {
          __builtin_prefetch(ahead + i, 0, 2);
        }
        ahead += at.ahead_bytes;
        for (int64_t r = 0; r < at.y_rows && y < y_end; ++r, y += job.y_stride) {
          __builtin_prefetch(y, 1);
          __builtin_prefetch(y + kLanes, 1);
        }
      }
      multiply<kRowTiles, kPanels>(x, stride, w);
      x[0] += x_step;
      x[1] += x_step;
      w[0] += kStepBytes;
      w[1] += kStepBytes;
    }
    if (job.k % kStep != 0) {
      w[0] = ends.w[0];
      w[1] = ends.w[1];
      multiply<kRowTiles, kPanels>(x, stride, w);
    }
    finish<0>(job, at.first[0], at.count[0], at.height, panel);
    if constexpr (kRowTiles > 1) {
      finish<1>(job, at.first[1], at.count[1], at.height, panel);
    }
    if constexpr (kPanels > 1) {
      finish<2>(job, at.first[0], at.count[0], at.height, panel + 1);
      if constexpr (kRowTiles > 1) {
        finish<3>(job, at.first[1], at.count[1], at.height, panel + 1);
      }
    }
  }

  template <int kPanels>
  static void panels(
      const PanelJob& job, const Bf16Rows& rows, int64_t panel, int64_t height, Ends& ends) {
    for (int p = 0; p < kPanels; ++p) {
      if (job.out_bias != nullptr) {
        const float* bias = job.out_bias + (panel + p) * kLanes;
        V::store(ends.bias[p], Access::load_some(bias, Access::num_valid(job, panel + p)));
      }
      if (job.k % kStep != 0) {
        fill_tail(job, panel + p, ends.w[p]);
      }
    }
    // Rows in tiles: the last tile may have rows behind the job's. Else the last tile ends at the job's last row. Rows that it
    // shares with the tile before are computed twice, with the same result.
    const int64_t last = rows.tile_rows > 0 ? job.num_rows : job.num_rows - height;
    // Each pair of row tiles prefetches its share of the next panels, and its y within the first half of its inputs.
    const int64_t num_pairs = (job.num_rows + 2 * height - 1) / (2 * height);
    const int64_t step = (kPanels * kStepBytes / num_pairs + 63) / 64 * 64;
    const std::byte* ahead = Access::panel_at(job, panel + kPanels);
    for (int64_t row = 0; row < job.num_rows; row += 2 * height) {
      const int64_t next = row + height;
      const int64_t second = least(next, last);
      const int64_t first = least(row, last);
      const RowTiles at{{first, second},
                        {least(height, job.num_rows - first), least(height, job.num_rows - second)},
                        height,
                        ahead,
                        step,
                        (4 * height * kStep + job.k - 1) / job.k};
      ahead += step * (job.k / kStep);
      if (next < job.num_rows) {
        tiles<2, kPanels>(job, rows, panel, at, ends);
      } else {
        tiles<1, kPanels>(job, rows, panel, at, ends);
      }
    }
  }

  static void run(const PanelJob& job, const Bf16Rows& rows) {
    const int64_t num_tiles = (job.num_rows + kTileRows - 1) / kTileRows;
    const int64_t height =
        rows.tile_rows > 0 ? rows.tile_rows : (job.num_rows + num_tiles - 1) / num_tiles;
    const TileShapes shapes = tile_shapes(height);
    const ScopedTiles scope(shapes);
    Ends ends;
    int64_t panel = 0;
    for (; panel + 2 <= job.num_panels; panel += 2) {
      panels<2>(job, rows, panel, height, ends);
    }
    if (panel < job.num_panels) {
      panels<1>(job, rows, panel, height, ends);
    }
  }
};

}  // namespace warprow::cpu
