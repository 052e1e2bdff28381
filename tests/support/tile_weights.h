// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/dtype.h"
#include "base/math.h"
#include "kernels/linear/packed_weight.h"
#include "kernels/linear/quant/quant_tiles.h"
#include "tests/support/group_weights.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace warprow::test {

// The bf16 [n, k] that kernels take from tiles of GGUF's types, with plain zeros, read as quant_tiles.h describes them.
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
    if (weight.kind == PackedKind::kQ6) {
      const auto byte_of = [&](int64_t place) {
        const int64_t at = col / 32 * 3 + place;
        return static_cast<uint32_t>(
            tile[at / 4 * 512 + lane * 16 + at % 4 * 4 + (below ? 0 : 1) + (next ? 2 : 0)]);
      };
      const int64_t place = step % 2 * 2 + word;
      const uint32_t number = place < 3
                                  ? byte_of(place) & 63U
                                  : byte_of(0) >> 6 | byte_of(1) >> 6 << 2 | byte_of(2) >> 6 << 4;
      return static_cast<int32_t>(number);
    }
    uint32_t nibbles = 0;
    std::memcpy(&nibbles, tile + step / 4 * 512 + lane * 16 + step % 4 * 4, sizeof(nibbles));
    const int64_t nibble = (below ? 1 : 0) + word * 2 + (next ? 4 : 0);
    const auto lower = static_cast<int32_t>(nibbles >> (4 * nibble) & 15U);
    return weight.kind == PackedKind::kTable ? static_cast<int32_t>(weight.numbers[lower]) : lower;
  };
  const int64_t across = ceil_div<int64_t>(weight.k, kQuantTileCols);
  std::vector<uint16_t> out;
  out.reserve(static_cast<size_t>(weight.n) * static_cast<size_t>(weight.k));
  for (int64_t row = 0; row < weight.n; ++row) {
    for (int64_t col = 0; col < weight.k; ++col) {
      const std::byte* tile =
          tiles + (row / kQuantTileRows * across + col / kQuantTileCols) * quant_tile_bytes(weight);
      const int64_t group = col % kQuantTileCols / weight.group;
      const auto of_scale = static_cast<size_t>(quant_scale_bytes(weight));
      uint32_t bits = 0;
      std::memcpy(&bits,
                  tile + quant_number_bytes(weight.kind) +
                      (group * kQuantTileRows + row % kQuantTileRows) * quant_scale_bytes(weight),
                  of_scale);
      float scale = 0.0F;
      float bias = -0.0F;
      if (weight.kind == PackedKind::kTable) {
        scale = std::bit_cast<float>(bits);
      } else {
        const bool shifted = weight.kind == PackedKind::kQ4 && row % kQuantTileRows >= 8;
        scale = bf16_to_f32(static_cast<uint16_t>(bits)) * (shifted ? 0x1p-81F : 0x1p-85F);
        if (weight.has_bias) {
          bias = bf16_to_f32(static_cast<uint16_t>(bits >> 16)) * kIntegerTimes;
        }
      }
      const int32_t number = number_at(tile, row % kQuantTileRows, col % kQuantTileCols);
      out.push_back(quant_weight(static_cast<float>(number - weight.zero_point), scale, bias));
    }
  }
  return with_plain_zeros(std::move(out));
}

}  // namespace warprow::test
