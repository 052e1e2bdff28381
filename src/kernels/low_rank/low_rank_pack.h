// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/dtype.h"

#include <cstddef>
#include <cstdint>

namespace warprow {

// The form of a bank's matrices, on the host. kF32: rows, and for B its columns, one after the other. kBF16: fragments of
// mma.m16n8k16's first operand, so that a lane loads 16 bytes.
//  A: [rank / 16] [k / 32] [2] [32 lanes] [8]. Lane 4 g + i has of step s the inputs 8 i + 4 s + {0, 1, 2, 3} of ranks g and
//   g + 8.
//  B: [rank / 16] [n / 64] [4] [32 lanes] [8]. Lane 4 g + i has of step j the columns 8 g + 2 j + {0, 1} and ranks
//   2 i + {0, 1, 8, 9}, so that its four sums of a token are eight adjacent columns.
size_t low_rank_a_bytes(DType dtype, int32_t max_rank, int32_t k);
size_t low_rank_b_bytes(DType dtype, int32_t max_rank, int32_t n);

// a [rank, k], b [n, rank] row by row; b is multiplied by scale. Tiles are padded with zeros.
void pack_low_rank_a(DType dtype, int32_t rank, int32_t k, const float* a, std::byte* to);
void pack_low_rank_b(
    DType dtype, int32_t rank, int32_t n, const float* b, float scale, std::byte* to);

// The rank as a bank states it.
constexpr int32_t stored_rank(DType dtype, int32_t rank) {
  return dtype == DType::kF32 ? rank : (rank + 15) / 16 * 16;
}

}  // namespace warprow
