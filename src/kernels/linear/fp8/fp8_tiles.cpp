// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/fp8/fp8_tiles.h"

#include "base/check.h"

#include <algorithm>
#include <cstring>

namespace warprow {

void pack_fp8_unit(const PackedWeight& weight,
                   int64_t count,
                   const uint8_t* numbers,
                   const float* scales,
                   std::span<std::byte> out) {
  constexpr int64_t kChunk = 16;
  const bool grouped = weight.inputs == F8Inputs::kGroup;
  WR_CHECK(count >= 1 && count <= kFp8UnitRows, "{} rows", count);
  WR_CHECK_EQ(static_cast<int64_t>(out.size()), fp8_unit_bytes(weight.k, grouped));
  std::fill(out.begin(), out.end(), std::byte{0});
  const int64_t tiles = fp8_tiles_of(weight.k);
  std::byte* scales_out = out.data() + fp8_scales_at(weight.k);
  for (int64_t r = 0; r < count; ++r) {
    const uint8_t* row = numbers + r * weight.k;
    for (int64_t first = 0; first < weight.k; first += kChunk) {
      const int64_t tile = first / kFp8TileCols;
      const int64_t chunk = first % kFp8TileCols / kChunk;
      std::memcpy(out.data() + tile * kFp8TileBytes + r * kFp8TileCols + (chunk ^ (r % 8)) * kChunk,
                  row + first,
                  static_cast<size_t>(std::min<int64_t>(kChunk, weight.k - first)));
    }
    for (int64_t tile = 0; tile < (grouped ? tiles : 1); ++tile) {
      std::memcpy(scales_out + (tile * kFp8UnitRows + r) * 4, scales + r * tiles + tile, 4);
    }
  }
}

}  // namespace warprow
