// SPDX-License-Identifier: Apache-2.0
#include "kernels/norm/rms_norm_loops.h"
#include "kernels/simd/norm_row.inl"

namespace warprow::cpu {
namespace {

inline void add_row(float* residual, const float* x, int n) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    store(residual + i, load(residual + i) + load(x + i));
  }
  for (; i < n; ++i) {
    residual[i] += x[i];
  }
}

}  // namespace

void WR_ISA_NAME(rms_norm_rows)(const RmsNormLoop& a, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const float* x = a.x + t * a.x_stride;
    if (a.residual != nullptr) {
      float* residual = a.residual + t * a.residual_stride;
      add_row(residual, x, a.width);
      x = residual;
    }
    norm_row(x, a.weight, a.eps, a.width, a.out + t * a.out_stride);
  }
}

}  // namespace warprow::cpu
