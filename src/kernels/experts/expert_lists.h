// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/math.h"
#include "device/view.h"
#include "kernels/linear/packed_weight.h"

#include <algorithm>
#include <cstdint>

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
  // What the experts' matrices are. CUDA: tiles have the places that suit them.
  PackedKind matrices = PackedKind::kBF16;
};

// Whether experts' matrices of this kind are tiles of linear operations on CUDA (kernels/linear/quant/quant_tiles.h).
constexpr bool has_quant_tiles(PackedKind kind) {
  return kind == PackedKind::kF8 || kind == PackedKind::kQ8 || kind == PackedKind::kQ4;
}

// Places of a tile, by the largest number of rows: a step's tiles should be full, but one tile an expert reads its matrix
// once. Results do not depend on it.
constexpr int32_t expert_tile_places(int64_t num_toks,
                                     int32_t num_chosen,
                                     int32_t num_experts,
                                     PackedKind matrices) {
  const int64_t mean = num_toks * num_chosen / num_experts;
  if (matrices == PackedKind::kMxfp4) {
    if (mean <= 48) {
      return mean <= 5 ? 8 : mean <= 24 ? 32 : 64;
    }
    return mean <= 80 ? 96 : mean <= 160 ? 128 : 256;
  }
  const bool is_wide = mean > 160 && !has_quant_tiles(matrices);
  return mean <= 4 ? 8 : mean <= 20 ? 32 : is_wide ? 256 : 128;
}

// Tiles of a step of up to max_toks rows.
constexpr int64_t most_expert_tiles(int64_t max_toks, int32_t num_chosen, int32_t num_experts) {
  const auto most_tiles = [&](int64_t toks, int64_t width) {
    const int64_t slots = std::min(max_toks, toks) * num_chosen;
    return std::min<int64_t>(slots, num_experts) + ceil_div(slots, width);
  };
  const int64_t with_8 = most_tiles(8 * num_experts / num_chosen + 1, 8);
  const int64_t with_32 = most_tiles(29 * num_experts / num_chosen + 1, 32);
  const int64_t with_64 = most_tiles(49 * num_experts / num_chosen + 1, 64);
  const int64_t with_96 = most_tiles(81 * num_experts / num_chosen + 1, 96);
  return std::max(
      {with_8, with_32, with_64, with_96, most_tiles(max_toks, 128)});  // with 256 fewer
}

// Elements of ExpertLists::tiles for such steps: the tiles, and room for counts of 64 parts of the rows.
constexpr int64_t expert_tiles_room(int64_t max_toks, int32_t num_chosen, int32_t num_experts) {
  return 4 * (1 + most_expert_tiles(max_toks, num_chosen, num_experts)) + int64_t{64} * num_experts;
}

}  // namespace warprow
