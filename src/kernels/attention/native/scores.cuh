// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/ptx.cuh"

namespace warprow::cuda {

// Scores as exponents of two, for the online softmax.

constexpr float kLog2E = 1.4426950408889634F;
constexpr float kLn2 = 0.6931471805599453F;
// Initial value of a running maximum, in place of minus infinity, so that the difference of two maxima is
// never NaN.
constexpr float kNoMax = -1.0e30F;

// Converts a dot product to a score as an exponent of two. cap > 0: applies cap * tanh(s / cap) first.
__device__ __forceinline__ float to_log2_score(float dot,
                                               float scale_log2,
                                               float scale,
                                               float cap) {
  if (cap <= 0.0F) {
    return dot * scale_log2;
  }
  const float e = exp2_fast(dot * scale * (2.0F * kLog2E) / cap);
  return cap * kLog2E * (1.0F - 2.0F / (e + 1.0F));
}

}  // namespace warprow::cuda
