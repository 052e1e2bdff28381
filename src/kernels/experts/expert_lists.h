// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/math.h"
#include "device/view.h"
#include "kernels/linear/packed_weight.h"
#include "kernels/linear/quant/quant_tiles.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>

namespace warprow {

// The experts of each row, and the rows of each expert. Slot t * num_chosen + j is row t's j-th choice. Sorted by expert,
// then ascending, the slots have places 0, 1, ...; rows of products with experts' matrices lie by place, so that an
// expert's rows are contiguous.
struct ExpertLists {
  int32_t num_experts = 0;
  int32_t num_chosen = 0;  // by each row, at most 32
  View<int32_t, 1> first =
      {};  // dev [num_experts + 1]  the place of each expert's first slot; the last: all slots
  View<int32_t, 1> slots = {};   // dev [T * num_chosen]  by place
  View<int32_t, 1> places = {};  // dev [T * num_chosen]  by slot
  // dev [1] or null: how many of the T rows are real. Rows behind them choose no expert.
  const int32_t* num_rows = nullptr;
  // CUDA: dev [expert_tiles_room], the work list of products: {tiles, 0, 0, 0}, then for each tile {expert, first place,
  // places, 0}. A tile has at most expert_tile_places places of one expert.
  View<int32_t, 1> tiles = {};
  // The format of the experts' matrices. CUDA: the number of places of a tile depends on it.
  PackedKind matrices = PackedKind::kBF16;
};

// Places of a tile up to a mean number of rows an expert.
struct ExpertTileWidth {
  int64_t most_mean;
  int32_t places;
};
inline constexpr int64_t kAnyMean = std::numeric_limits<int64_t>::max();
inline constexpr ExpertTileWidth kMxfp4TileWidths[] = {
    {5, 8}, {24, 32}, {40, 48}, {48, 64}, {80, 96}, {160, 128}, {kAnyMean, 256}};
inline constexpr ExpertTileWidth kBf16TileWidths[] = {
    {4, 8}, {20, 32}, {160, 128}, {kAnyMean, 256}};
inline constexpr ExpertTileWidth kNibbleTileWidths[] = {
    {6, 8}, {24, 32}, {48, 64}, {kAnyMean, 128}};
inline constexpr ExpertTileWidth kQuantTileWidths[] = {{4, 8}, {24, 32}, {48, 64}, {kAnyMean, 128}};

constexpr std::span<const ExpertTileWidth> expert_tile_widths(PackedKind matrices) {
  if (matrices == PackedKind::kMxfp4) {
    return kMxfp4TileWidths;
  }
  if (matrices == PackedKind::kQ4) {
    return kNibbleTileWidths;
  }
  return has_quant_tiles(matrices) ? std::span<const ExpertTileWidth>(kQuantTileWidths)
                                   : kBf16TileWidths;
}

// Places of a tile, by the largest number of rows: a step's tiles should be full, but one tile an expert reads its matrix
// once. Results do not depend on it.
constexpr int32_t expert_tile_places(int64_t num_toks,
                                     int32_t num_chosen,
                                     int32_t num_experts,
                                     PackedKind matrices) {
  const int64_t mean = num_toks * num_chosen / num_experts;
  for (const ExpertTileWidth& width : expert_tile_widths(matrices)) {
    if (mean <= width.most_mean) {
      return width.places;
    }
  }
  return 0;  // not reached: the last width has any mean
}

// Tiles of a step of up to max_toks rows, whatever the matrices are.
constexpr int64_t most_expert_tiles(int64_t max_toks, int32_t num_chosen, int32_t num_experts) {
  int64_t most = 0;
  for (const PackedKind matrices :
       {PackedKind::kMxfp4, PackedKind::kBF16, PackedKind::kQ4, PackedKind::kF8}) {
    for (const auto& [most_mean, places] : expert_tile_widths(matrices)) {
      // The most rows with that mean.
      const int64_t toks =
          most_mean == kAnyMean
              ? max_toks
              : std::min(max_toks, ((most_mean + 1) * num_experts - 1) / num_chosen);
      const int64_t slots = toks * num_chosen;
      most =
          std::max(most, std::min<int64_t>(slots, num_experts) + ceil_div<int64_t>(slots, places));
    }
  }
  return most;
}

// Elements of ExpertLists::tiles for such steps: the tiles, and room for counts of 64 parts of the rows.
constexpr int64_t expert_tiles_room(int64_t max_toks, int32_t num_chosen, int32_t num_experts) {
  return 4 * (1 + most_expert_tiles(max_toks, num_chosen, num_experts)) + int64_t{64} * num_experts;
}

}  // namespace warprow
