// SPDX-License-Identifier: Apache-2.0
#include "kernels/experts/mxfp4_tiles.h"

#include "base/check.h"
#include "base/math.h"

#include <algorithm>
#include <cstring>

namespace warprow {
namespace {

constexpr int64_t kGroup = 32;  // inputs of a scale

// mxfp4_spread by block, register and a byte of two adjacent inputs.
struct SpreadBytes {
  uint64_t words[2][4][256] = {};

  constexpr SpreadBytes() {
    for (int block = 0; block < 2; ++block) {
      for (int reg = 0; reg < 4; ++reg) {
        for (uint32_t byte = 0; byte < 256; ++byte) {
          words[block][reg][byte] = mxfp4_spread(byte, block, reg);
        }
      }
    }
  }
};
constexpr SpreadBytes kSpread;

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
  // The two numbers from an even input on.
  const auto two_at = [&](int64_t row, int64_t col) -> uint32_t {
    return row < 0 || col >= cols ? 0 : numbers[static_cast<size_t>(row * (cols / 2) + col / 2)];
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
      const int64_t upper = mxfp4_matrix_row(tile, r, rows, order);
      const int64_t lower = mxfp4_matrix_row(tile, r + 8, rows, order);
      for (int64_t pair = 0; pair < 2; ++pair) {
        uint64_t words = 0;
        for (int64_t block = 0; block < 2; ++block) {
          const int64_t c = first + pair * 32 + block * 16 + lane % 4 * 2;
          const auto& spread = kSpread.words[block];
          words |= spread[0][two_at(upper, c)] | spread[1][two_at(lower, c)] |
                   spread[2][two_at(upper, c + 8)] | spread[3][two_at(lower, c + 8)];
        }
        std::memcpy(to + lane * 16 + pair * 8, &words, 8);
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
