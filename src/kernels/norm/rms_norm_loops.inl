// SPDX-License-Identifier: Apache-2.0
#include "kernels/norm/rms_norm_loops.h"
#include "kernels/simd/norm_row.inl"

namespace warprow::cpu {

void WR_ISA_NAME(rms_norm_rows)(const RmsNormLoop& a, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    norm_row(a.x + t * a.x_stride, a.weight, a.eps, a.width, a.out + t * a.out_stride);
  }
}

}  // namespace warprow::cpu
