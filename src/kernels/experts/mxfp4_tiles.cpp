// SPDX-License-Identifier: Apache-2.0
#include "kernels/experts/mxfp4_tiles.h"

#include "base/check.h"
#include "base/math.h"

#include <algorithm>
#include <cstring>

namespace warprow {
namespace {

constexpr int64_t kGroup = 32;  // inputs of a scale

// The row of the matrix that is row `r` of the tile; -1: none.
int64_t source_row(int64_t tile, int64_t r, int64_t rows, Mxfp4Rows order) {
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

// Where the bits s, e, f, m of number i of a half word are (mxfp4_tiles.h).
constexpr int kPlaces[4][4] = {{15, 8, 7, 6}, {12, 5, 4, 3}, {9, 2, 1, 0}, {14, 13, 11, 10}};

uint32_t spread(uint32_t number, int i) {
  uint32_t bits = 0;
  for (int b = 0; b < 4; ++b) {
    bits |= (number >> (3 - b) & 1U) << kPlaces[i][b];
  }
  return bits;
}

}  // namespace

size_t mxfp4_tiles_bytes(int64_t rows, int64_t cols) {
  return static_cast<size_t>(ceil_div<int64_t>(rows, kMxfp4TileRows) *
                             ceil_div<int64_t>(cols, kMxfp4TileCols) * kMxfp4TileBytes);
}

bool pack_mxfp4_tiles(std::span<const uint8_t> numbers,
                      std::span<const uint8_t> scales,
                      int64_t rows,
                      int64_t cols,
                      Mxfp4Rows order,
                      int64_t tile,
                      std::span<uint8_t> out) {
  WR_CHECK(
      cols % kGroup == 0 && (order == Mxfp4Rows::kPlain || rows % 16 == 0), "{} x {}", rows, cols);
  const int64_t steps = ceil_div<int64_t>(cols, kMxfp4TileCols);
  WR_CHECK_EQ(static_cast<int64_t>(out.size()), steps * kMxfp4TileBytes);
  const auto number_at = [&](int64_t row, int64_t col) -> uint32_t {
    if (row < 0 || col >= cols) {
      return 0;
    }
    const uint8_t two = numbers[static_cast<size_t>(row * (cols / 2) + col / 2)];
    return col % 2 == 0 ? two & 15U : two >> 4;
  };
  uint32_t largest = 0;
  const auto scale_at = [&](int64_t row, int64_t col) -> uint32_t {
    if (row < 0 || col >= cols) {
      return 0;
    }
    const uint32_t scale = scales[static_cast<size_t>(row * (cols / kGroup) + col / kGroup)];
    largest = std::max(largest, scale);
    return scale + 126;
  };
  for (int64_t step = 0; step < steps; ++step) {
    uint8_t* to = out.data() + step * kMxfp4TileBytes;
    const int64_t first = step * kMxfp4TileCols;
    for (int64_t lane = 0; lane < 128; ++lane) {
      const int64_t r = lane / 32 * 16 + lane % 32 / 4;
      const int64_t upper = source_row(tile, r, rows, order);
      const int64_t lower = source_row(tile, r + 8, rows, order);
      for (int64_t i = 0; i < 4; ++i) {
        const int64_t c = first + i * 16 + lane % 4 * 2;
        uint32_t word = 0;
        for (int64_t half = 0; half < 2; ++half) {
          const uint32_t bits =
              spread(number_at(upper, c + half), 0) | spread(number_at(lower, c + half), 1) |
              spread(number_at(upper, c + 8 + half), 2) | spread(number_at(lower, c + 8 + half), 3);
          word |= bits << (16 * half);
        }
        std::memcpy(to + lane * 16 + i * 4, &word, 4);
      }
      if (lane % 4 == 0) {
        for (int64_t i = 0; i < 4; ++i) {
          const uint32_t scale = scale_at(i < 2 ? upper : lower, first + i % 2 * kGroup);
          to[kMxfp4NumberBytes + lane + i] = static_cast<uint8_t>(scale);
        }
      }
    }
  }
  return largest <= kMaxMxfp4Scale;
}

}  // namespace warprow
