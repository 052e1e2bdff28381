// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/simd/vec.h"

namespace warprow::cpu {
namespace {

// The sum of squares of n values: four chains of vectors, then a tree. The order depends on n alone.
inline float sum_of_squares(const float* x, int n) {
  VecF sum[4] = {};
  int i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int c = 0; c < 4; ++c) {
      const VecF v = load(x + i + c * kLanes);
      sum[c] = fma(v, v, sum[c]);
    }
  }
  for (; i + kLanes <= n; i += kLanes) {
    const VecF v = load(x + i);
    sum[0] = fma(v, v, sum[0]);
  }
  if (i < n) {
    const VecF v = load_n(x + i, n - i, 0.0F);
    sum[1] = fma(v, v, sum[1]);
  }
  return sum_lanes((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

// out = x / sqrt(mean(x^2) + eps) * weight; out may be x.
inline void norm_row(const float* x, const float* weight, float eps, int n, float* out) {
  const float mean = sum_of_squares(x, n) / static_cast<float>(n);
  const float factor = 1.0F / __builtin_sqrtf(mean + eps);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    store(out + i, load(x + i) * factor * load(weight + i));
  }
  for (; i < n; ++i) {
    out[i] = x[i] * factor * weight[i];
  }
}

}  // namespace
}  // namespace warprow::cpu
