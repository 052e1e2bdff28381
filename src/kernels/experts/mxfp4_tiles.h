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
// registers: a word for each 16 inputs. Lane l of warp w has rows u = 16 w + l / 4 and u + 8, and inputs c = l % 4 * 2,
// c + 1, c + 8, c + 9. The word's lower half has inputs c and c + 8, its upper half those behind them, with sign s,
// exponent e f and fraction m of the four numbers at
//
//   15  14  13  12  11  10   9   8   7   6   5   4   3   2   1   0
//   s0  s3  e3  s1  f3  m3  s2  e0  f0  m0  e1  f1  m1  e2  f2  m2     0: (u, c)  1: (u + 8, c)  2: (u, c + 8)  3: (u + 8, c + 8)
//
// so that a shift and a mask make pairs of bf16 of them. Then come the scales, 4 bytes for each lane l with l % 4 = 0: of
// row u's two groups of 32 inputs, and of row u + 8's. A byte is the scale's exponent field plus 126: 2^126 times the
// scale as a bf16 exponent.
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

// The bits of a number, number i of a half word, in their places.
WR_HD constexpr uint32_t mxfp4_spread(uint32_t number, int i) {
  const uint32_t sign = number >> 3 & 1U;
  const uint32_t rest = number & 7U;  // e f m
  switch (i) {
    case 0:
      return sign << 15 | rest << 6;
    case 1:
      return sign << 12 | rest << 3;
    case 2:
      return sign << 9 | rest;
    default:
      return sign << 14 | (rest & 4U) << 11 | (rest & 3U) << 10;
  }
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
