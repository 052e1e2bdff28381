// SPDX-License-Identifier: Apache-2.0
#include "kernels/experts/combine_experts_loops.h"
#include "kernels/simd/vec.h"

namespace warprow::cpu {

void WR_ISA_NAME(combine_experts_row)(const CombineRow& row) {
  int64_t i = 0;
  for (; i + kLanes <= row.n; i += kLanes) {
    VecF sum = splat(0.0F);
    for (int32_t j = 0; j < row.num_rows; ++j) {
      sum = fma(splat(row.weights[j]), load(row.x + row.places[j] * row.stride + i), sum);
    }
    store(row.y + i, row.add ? load(row.y + i) + sum : sum);
  }
  if (i < row.n) {
    const int rest = static_cast<int>(row.n - i);
    VecF sum = splat(0.0F);
    for (int32_t j = 0; j < row.num_rows; ++j) {
      const VecF x = load_n(row.x + row.places[j] * row.stride + i, rest, 0.0F);
      sum = fma(splat(row.weights[j]), x, sum);
    }
    store_n(row.y + i, row.add ? load_n(row.y + i, rest, 0.0F) + sum : sum, rest);
  }
}

}  // namespace warprow::cpu
