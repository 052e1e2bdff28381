// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace warprow {

// How a checkpoint orders the output rows of a matrix.
enum class RowOrder : uint8_t {
  kPlain,
  // Within each head, rope's pairs lie side by side (GGUF of the llama family); loading restores the halves. An expert
  // whose gate and up rows alternate (gpt-oss) is such a head: its halves are gate and up.
  kRopePairs,
};

// The checkpoint's row that holds row `row` of the plain order, when rope pairs lie side by side:
// halves (j, i) of a head become row 2 i + j.
constexpr int64_t rope_pair_row(int64_t row, int32_t head_dim) {
  const int64_t head = row / head_dim;
  const int64_t within = row % head_dim;
  const int64_t half = head_dim / 2;
  return head * head_dim + 2 * (within % half) + within / half;
}

constexpr int64_t source_row(RowOrder order, int64_t row, int32_t head_dim) {
  return order == RowOrder::kRopePairs ? rope_pair_row(row, head_dim) : row;
}

}  // namespace warprow
