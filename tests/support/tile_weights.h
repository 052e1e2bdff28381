// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/math.h"
#include "kernels/linear/packed_weight.h"
#include "kernels/linear/quant/quant_tiles.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace warprow::test {

// The bf16 [n, k] that kernels take from tiles with float32 scales, read as quant_tiles.h describes them.
inline std::vector<uint16_t> tile_weights(const PackedWeight& weight, const std::byte* tiles) {
  const auto number_at = [&](const std::byte* tile, int64_t row, int64_t col) {
    const int64_t lane = row % 8 * 4 + col % 8 / 2;
    const int64_t step = col / 16;
    const int64_t word = col % 16 / 8;
    const bool below = row >= 8;
    const bool next = col % 2 == 1;
    if (weight.kind == PackedKind::kQ8) {
      const int64_t byte = (below ? 0 : 1) + (next ? 2 : 0);
      return static_cast<int32_t>(
          tile[step / 2 * 512 + lane * 16 + step % 2 * 8 + word * 4 + byte]);
    }
    uint32_t nibbles = 0;
    std::memcpy(&nibbles, tile + step / 4 * 512 + lane * 16 + step % 4 * 4, sizeof(nibbles));
    const int64_t nibble = (below ? 1 : 0) + word * 2 + (next ? 4 : 0);
    const auto lower = static_cast<int32_t>(nibbles >> (4 * nibble) & 15U);
    if (weight.kind == PackedKind::kTable) {
      return static_cast<int32_t>(weight.numbers[lower]);
    }
    if (weight.kind == PackedKind::kQ4) {
      return lower;
    }
    uint32_t bits = 0;
    std::memcpy(&bits, tile + 1024 + lane * 16 + col / 32 * 4, sizeof(bits));
    const int64_t first = 4 + nibble % 4 * 4 + (next ? 2 : 0) + step % 2 * 16;
    return lower | static_cast<int32_t>(bits >> (first % 32) & 3U) << 4;
  };
  const int64_t across = ceil_div<int64_t>(weight.k, kQuantTileCols);
  std::vector<uint16_t> out;
  out.reserve(static_cast<size_t>(weight.n) * static_cast<size_t>(weight.k));
  for (int64_t row = 0; row < weight.n; ++row) {
    for (int64_t col = 0; col < weight.k; ++col) {
      const std::byte* tile =
          tiles + (row / kQuantTileRows * across + col / kQuantTileCols) * quant_tile_bytes(weight);
      const int64_t group = col % kQuantTileCols / weight.group;
      const int64_t of_scale = weight.has_bias ? 8 : 4;
      float scale[2] = {0.0F, -0.0F};
      std::memcpy(scale,
                  tile + quant_number_bytes(weight.kind) +
                      (group * kQuantTileRows + row % kQuantTileRows) * of_scale,
                  static_cast<size_t>(of_scale));
      scale[0] /= quant_float_scale(weight.kind, row % kQuantTileRows, 1.0F);
      scale[1] *= kFloatTimes;
      const int32_t number = number_at(tile, row % kQuantTileRows, col % kQuantTileCols);
      out.push_back(
          quant_weight(static_cast<float>(number - weight.zero_point), scale[0], scale[1]));
    }
  }
  return out;
}

}  // namespace warprow::test
