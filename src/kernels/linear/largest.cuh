// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/ptx.cuh"
#include "kernels/linear/output_max.h"

#include <cstdint>
#include <limits>

namespace warprow::cuda {

// The largest of some outputs of a row: that of the lowest number at ties, NaN if one of them is NaN.
struct Largest {
  float value = -std::numeric_limits<float>::infinity();
  int32_t output = INT32_MAX;

  // To be followed by outputs from this number on. It keeps the number in range where all are -inf.
  __device__ static Largest of_numbers_from(int32_t first) {
    return {-std::numeric_limits<float>::infinity(), first};
  }

  // Outputs in ascending order.
  __device__ __forceinline__ void take(float v, int32_t number) {
    output = v > value ? number : output;
    value = max_or_nan(value, v);
  }
  // Outputs of others, in any order.
  __device__ __forceinline__ void take(const Largest& others) {
    const bool theirs = others.value > value || (others.value == value && others.output < output);
    output = theirs ? others.output : output;
    value = max_or_nan(value, others.value);
  }
  // Every one of kLanes adjacent lanes gets the largest of all of them. All lanes of the warp call it.
  template <int kLanes>
  __device__ __forceinline__ void take_lanes() {
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) {
      take(Largest{__shfl_xor_sync(~0U, value, step), __shfl_xor_sync(~0U, output, step)});
    }
  }
};

}  // namespace warprow::cuda
