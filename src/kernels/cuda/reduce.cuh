// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/ptx.cuh"

// Butterflies over groups of kLanes adjacent lanes, the farthest lane first: every lane gets the result, and the order of the
// sums is fixed. All lanes of the warp take part.
namespace warprow::cuda {

template <int kLanes = 32, typename T>
__device__ __forceinline__ T sum_of_lanes(T v) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    v += __shfl_xor_sync(~0U, v, step);
  }
  return v;
}

// The sum of v over the lanes up to this one, `lane`.
template <typename T>
__device__ __forceinline__ T sum_up_to_lane(T v, int lane) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const T left = __shfl_up_sync(~0U, v, step);
    v += lane >= step ? left : T{0};
  }
  return v;
}

// NaN if a lane has NaN.
template <int kLanes = 32>
__device__ __forceinline__ float max_of_lanes(float v) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    v = max_or_nan(v, __shfl_xor_sync(~0U, v, step));
  }
  return v;
}

}  // namespace warprow::cuda
