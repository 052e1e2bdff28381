// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/linear/finish.cuh"

#include <cstdint>

namespace warprow::cuda {

// Stores the i-th sum of squares of 64 columns, or its quarters, from the four values of each of 16 lanes.
__device__ __forceinline__ void leave_squares(
    float* squares, int64_t i, const float4& v, unsigned lanes, bool quartered) {
  const unsigned lane = threadIdx.x % 16;
  const float quarter = quarter_of_squares(v, lanes);
  if (quartered) {
    if (lane < 4) {
      squares[i * 4 + lane] = quarter;
    }
    return;
  }
  const float sum = sum_of_quarters(quarter, lanes);
  if (lane == 0) {
    squares[i] = sum;
  }
}

}  // namespace warprow::cuda
