// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "comm/cuda/ordered_sum.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"

namespace warprow::cuda {
namespace {

constexpr int32_t kThreads = 256;

__global__ void __launch_bounds__(kThreads) sum_parts(const float* parts,
                                                      int32_t size,
                                                      int64_t n,
                                                      float* out) {
  pdl_wait();
  pdl_release();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) {
    return;
  }
  float sum = parts[i];
  for (int32_t rank = 1; rank < size; ++rank) {
    sum = __fadd_rn(sum, parts[rank * n + i]);
  }
  out[i] = sum;
}

}  // namespace

void ordered_sum(Stream& stream, const float* parts, int32_t size, int64_t n, float* out) {
  if (n > 0) {
    const auto grid = static_cast<unsigned>(ceil_div(n, int64_t{kThreads}));
    launch(stream, "ordered_sum", {grid, kThreads}, sum_parts, parts, size, n, out);
  }
}

}  // namespace warprow::cuda
