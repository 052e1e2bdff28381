// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "kernels/linear/packed_weight.h"

#include <cstddef>
#include <cstdint>
#include <span>

// The form in which CUDA keeps an e4m3 matrix whose products have e4m3 activations (PackedKind::kF8F8).
//
// A unit is 16 rows of the matrix. First come its tiles of 128 inputs, one after the other, as wgmma reads them: rows of 128
// bytes, whose chunks of 16 bytes are swizzled (chunk c of row r is at place c ^ r % 8); what is behind the ends is zero. Then
// come float32 scales: with F8Inputs::kGroup 16 for each tile, else 16, one a row. A unit is a multiple of 128 bytes.
namespace warprow {

inline constexpr int32_t kFp8UnitRows = 16;
inline constexpr int32_t kFp8TileCols = 128;
inline constexpr int32_t kFp8TileBytes = kFp8UnitRows * kFp8TileCols;

WR_HD constexpr int32_t fp8_tiles_of(int32_t k) { return (k + kFp8TileCols - 1) / kFp8TileCols; }
// Where a unit's scales begin.
WR_HD constexpr int64_t fp8_scales_at(int32_t k) {
  return int64_t{fp8_tiles_of(k)} * kFp8TileBytes;
}
WR_HD constexpr int64_t fp8_unit_bytes(int32_t k, bool grouped) {
  const int64_t scales = int64_t{grouped ? fp8_tiles_of(k) : 1} * kFp8UnitRows * 4;
  return fp8_scales_at(k) + (scales + 127) / 128 * 128;
}

// Packs up to 16 rows, which begin a unit: numbers [count, k], scales [count, ceil(k / 128)], those of a row alike unless
// inputs are kGroup.
void pack_fp8_unit(const PackedWeight& weight,
                   int64_t count,
                   const uint8_t* numbers,
                   const float* scales,
                   std::span<std::byte> out);

}  // namespace warprow
