// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"

#include <cstddef>
#include <cstdint>
#include <span>

// The form in which CUDA keeps a matrix of MXFP4 (OCP Microscaling Formats, 2023): e2m1 numbers, and an e8m0 scale for
// each 32 inputs of a row.
//
// A tile is 64 rows by 64 inputs. Tiles lie by 64 rows, then by inputs; rows and inputs behind the ends are zeros.
//
// First come the numbers, 16 bytes for each of 128 lanes in the order in which wgmma takes a 64 x 16 operand from
// registers: two words for each 32 inputs, the first for the first 16 of them. Lane l of warp w has rows u = 16 w + l / 4
// and u + 8, and of a block of 16 inputs c = l % 4 * 2, c + 1, c + 8, c + 9: registers 0: (u, c), 1: (u + 8, c),
// 2: (u, c + 8), 3: (u + 8, c + 8), the input behind in the upper half. mxfp4_bit says where the bits of a number are: sign,
// exponent e f and fraction m. They lie so that few shifts and masks make bf16 of them: a word as it is, shifted left by 4
// and rotated right by 6 has registers 0, 1 and 2. What is left of both words together (mxfp4_rest), shifted left by 6 and
// rotated right by 4, has register 3 of each.
//
// Then come the scales, 4 bytes for each lane l with l % 4 = 0: of row u's two groups of 32 inputs, and of row u + 8's. A
// byte is the scale's exponent field plus 126: 2^126 times the scale as a bf16 exponent.
namespace warprow {

inline constexpr int32_t kMxfp4TileRows = 64;
inline constexpr int32_t kMxfp4TileCols = 64;
inline constexpr int32_t kMxfp4NumberBytes = 2048;
inline constexpr int32_t kMxfp4TileBytes = kMxfp4NumberBytes + 128;
// Larger exponent fields of scales (2^1) do not fit.
inline constexpr int32_t kMaxMxfp4Scale = 128;

// The order of an expert's rows in its tiles.
//  kPlain:  as they are.
//  kHalves: gate rows, then as many up rows; a tile's rows 16 i to 16 i + 7 are gate rows, the eight behind them their
//           up rows.
//  kAlternating: the same of rows that alternate: gate, up, gate, ...
enum class Mxfp4Rows : uint8_t { kPlain, kHalves, kAlternating };

// The row of an expert's matrix that is row `r` of tile `tile`; -1: none.
WR_HD constexpr int64_t mxfp4_matrix_row(int64_t tile, int64_t r, int64_t rows, Mxfp4Rows order) {
  if (order == Mxfp4Rows::kPlain) {
    const int64_t row = tile * kMxfp4TileRows + r;
    return row < rows ? row : -1;
  }
  const int64_t output = tile * (kMxfp4TileRows / 2) + r / 16 * 8 + r % 8;
  const int64_t half = r % 16 / 8;
  if (output >= rows / 2) {
    return -1;
  }
  return order == Mxfp4Rows::kHalves ? half * (rows / 2) + output : 2 * output + half;
}

// A number as bf16, but for its scale: sign, exponent and fraction.
inline constexpr uint32_t kMxfp4Number = 0x81c0;

// Bits that register 3 of both blocks of 16 inputs is made of.
WR_HD constexpr uint32_t mxfp4_rest(uint32_t first, uint32_t second) {
  constexpr uint32_t kOfFirst = 0x06030603;
  return (first & kOfFirst) | (second << 2 & ~kOfFirst);
}

// Where bit `bit` (fraction 0, exponent 1 and 2, sign 3) of a number is in the two words of 32 inputs. block: of 16 inputs.
WR_HD constexpr int mxfp4_bit(int block, int reg, int half, int bit) {
  const int target = half * 16 + (bit == 3 ? 15 : 6 + bit);
  switch (reg) {
    case 0:
      return block * 32 + target;
    case 1:
      return block * 32 + target - 4;
    case 2:
      return block * 32 + (target + 6) % 32;
    default: {
      const int of_rest = block == 0 ? target - 6 : (target + 4) % 32;
      const bool of_first = (mxfp4_rest(~0U, 0) >> of_rest & 1U) != 0;
      return of_first ? of_rest : 32 + of_rest - 2;
    }
  }
}

// The bits of two numbers, one input behind the other, in their places. The first is in the low bits of `numbers`.
WR_HD constexpr uint64_t mxfp4_spread(uint32_t numbers, int block, int reg) {
  uint64_t words = 0;
  for (int i = 0; i < 8; ++i) {
    words |= uint64_t{numbers >> i & 1U} << mxfp4_bit(block, reg, i / 4, i % 4);
  }
  return words;
}

// Bytes of a matrix.
[[nodiscard]] size_t mxfp4_tiles_bytes(int64_t rows, int64_t cols);

// Packs 64 rows, number `tile` of those of the matrix [rows, cols]. numbers: [rows, cols / 2], the even input in the low
// bits. scales: [rows, cols / 32]. cols is a multiple of 32. Returns false if a scale exceeds kMaxMxfp4Scale.
bool pack_mxfp4_tiles(std::span<const uint8_t> numbers,
                      std::span<const uint8_t> scales,
                      int64_t rows,
                      int64_t cols,
                      Mxfp4Rows order,
                      int64_t tile,
                      std::span<uint8_t> out);

}  // namespace warprow
