// SPDX-License-Identifier: Apache-2.0
// How sm90_fp8_gemm_large splits a product. Plain arithmetic, so that a build without CUDA can test it.
#include "base/math.h"
#include "kernels/linear/fp8/sm90_fp8_large.h"

namespace warprow::cuda {

// Fitted to products of Qwen3-8B on an H200 (docs/experiments/linears_cuda.md).
double sm90_fp8_large_us(const Sm90Fp8LargePlan& plan,
                         const PackedWeight& weight,
                         int32_t rows,
                         int32_t num_sms) {
  constexpr double kStart = 4.0;
  const int64_t clusters = num_sms / 2;
  const int64_t tiles = int64_t{ceil_div(rows, 256)} * ceil_div(weight.n, plan.cols);
  double ns = plan.cols == 128 ? 3.75 : 4.75;  // of an input
  if (tiles <= clusters) {
    ns *= 0.82;  // fewer tiles at once
  }
  if (weight.inputs == F8Inputs::kGroup) {
    ns *= 1.2;
  }
  return kStart + 1e-3 * ns * static_cast<double>(ceil_div(tiles, clusters) * weight.k);
}

Sm90Fp8LargePlan sm90_fp8_large_plan(const PackedWeight& weight, int32_t rows, int32_t num_sms) {
  const int32_t parts = sm90_fp8_parts(weight.n, weight.k);
  const Sm90Fp8LargePlan small{.cols = 128, .parts = parts};
  const Sm90Fp8LargePlan large{.cols = 192, .parts = 1};
  if (parts > 1 || weight.inputs == F8Inputs::kGroup) {
    return small;
  }
  return sm90_fp8_large_us(small, weight, rows, num_sms) <
                 sm90_fp8_large_us(large, weight, rows, num_sms)
             ? small
             : large;
}

}  // namespace warprow::cuda
