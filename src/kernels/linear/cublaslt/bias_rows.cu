// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/linear/cublaslt/cublaslt.h"

#include <algorithm>
#include <cuda_bf16.h>

namespace warprow::cuda {
namespace {

constexpr int kThreads = 256;

// One output a thread; blockIdx.y is the row of y.
template <typename T>
__global__ void bias_rows_kernel(T* y, int64_t stride, int n, const float* bias, bool add) {
  const int j = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  pdl_wait();
  pdl_release();
  if (j < n) {
    T& out = y[blockIdx.y * stride + j];
    out = static_cast<T>(add ? static_cast<float>(out) + bias[j] : bias[j]);
  }
}

template <typename T>
void launch_rows(Stream& stream, const ActView& y, const float* bias, bool add) {
  constexpr int64_t kMaxRows = 65535;  // of a grid
  for (int64_t first = 0; first < y.shape[0]; first += kMaxRows) {
    const int64_t rows = std::min(y.shape[0] - first, kMaxRows);
    const auto blocks = static_cast<unsigned>((y.shape[1] + kThreads - 1) / kThreads);
    launch(stream,
           "bias_rows",
           {dim3(blocks, static_cast<unsigned>(rows)), dim3(kThreads)},
           bias_rows_kernel<T>,
           static_cast<T*>(y.data) + first * y.stride,
           y.stride,
           static_cast<int>(y.shape[1]),
           bias,
           add);
  }
}

}  // namespace

void bias_rows(Stream& stream, const ActView& y, const float* bias, bool add) {
  if (y.dtype == DType::kF32) {
    launch_rows<float>(stream, y, bias, add);
  } else {
    launch_rows<__nv_bfloat16>(stream, y, bias, add);
  }
}

}  // namespace warprow::cuda
