// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/linear/float32/f32_gemm.h"

namespace warprow::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 64;    // rows, and outputs, of a CTA
constexpr int kInputs = 32;  // of a pass through shared memory
constexpr int kEach = 4;     // rows, and outputs, of a thread
constexpr int kPitch = kTile + 4;
static_assert(kTile / kEach * (kTile / kEach) == kThreads);

// Copies inputs `first` to first + kInputs - 1 of kTile rows, transposed. What lies outside the matrix is zero, which
// changes no sum.
__device__ __forceinline__ void load_tile(const float* rows,
                                          int64_t stride,
                                          int32_t num_rows,
                                          int first,
                                          int k,
                                          float (&to)[kInputs][kPitch]) {
  constexpr int kQuads = kInputs / 4;  // of a row
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kQuads; i += kThreads) {
    const int row = i / kQuads;
    const int input = i % kQuads * 4;
    float4 v = {0.0F, 0.0F, 0.0F, 0.0F};
    if (row < num_rows && first + input < k) {
      v = *reinterpret_cast<const float4*>(rows + row * stride + first + input);
    }
    to[input][row] = v.x;
    to[input + 1][row] = v.y;
    to[input + 2][row] = v.z;
    to[input + 3][row] = v.w;
  }
}

__global__ void __launch_bounds__(kThreads) multiply(F32GemmArgs a) {
  __shared__ __align__(16) float x[kInputs][kPitch];
  __shared__ __align__(16) float w[kInputs][kPitch];
  pdl_wait();
  pdl_release();
  const int32_t first_row = static_cast<int32_t>(blockIdx.y) * kTile;
  const int32_t first_output = static_cast<int32_t>(blockIdx.x) * kTile;
  const int row = static_cast<int>(threadIdx.x) / (kTile / kEach) * kEach;
  const int output = static_cast<int>(threadIdx.x) % (kTile / kEach) * kEach;
  float sums[kEach][kEach] = {};
  for (int first = 0; first < a.k; first += kInputs) {
    load_tile(a.x + first_row * a.x_stride, a.x_stride, a.m - first_row, first, a.k, x);
    load_tile(a.w + int64_t{first_output} * a.k, a.k, a.n - first_output, first, a.k, w);
    __syncthreads();
    if (first_row + row < a.m) {
      float part[kEach][kEach] = {};
#pragma unroll
      for (int i = 0; i < kInputs; ++i) {
        const float4 p = *reinterpret_cast<const float4*>(&x[i][row]);
        const float4 q = *reinterpret_cast<const float4*>(&w[i][output]);
        const float rows[kEach] = {p.x, p.y, p.z, p.w};
        const float outputs[kEach] = {q.x, q.y, q.z, q.w};
#pragma unroll
        for (int t = 0; t < kEach; ++t) {
#pragma unroll
          for (int j = 0; j < kEach; ++j) {
            part[t][j] = __fmaf_rn(rows[t], outputs[j], part[t][j]);
          }
        }
      }
#pragma unroll
      for (int t = 0; t < kEach; ++t) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
          sums[t][j] = __fadd_rn(sums[t][j], part[t][j]);
        }
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int t = 0; t < kEach; ++t) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int32_t at_row = first_row + row + t;
      const int32_t at_output = first_output + output + j;
      if (at_row < a.m && at_output < a.n) {
        float* y = a.y + at_row * a.y_stride + at_output;
        float sum = sums[t][j];
        if (a.bias != nullptr) {
          sum = __fadd_rn(sum, a.bias[at_output]);
        }
        *y = a.add ? __fadd_rn(*y, sum) : sum;
      }
    }
  }
}

}  // namespace

void f32_gemm(Stream& stream, const F32GemmArgs& args) {
  WR_CHECK(args.k % 4 == 0 && rows_fit_vec(args.x, args.x_stride, sizeof(float)) &&
               rows_fit_vec(args.w, args.k, sizeof(float)),
           "float32 rows of {} inputs, {} apart, are not aligned to 16 bytes",
           args.k,
           args.x_stride);
  if (args.m == 0 || args.n == 0) {
    return;
  }
  const dim3 grid(static_cast<unsigned>(ceil_div(args.n, kTile)),
                  static_cast<unsigned>(ceil_div(args.m, kTile)));
  launch(stream, "f32_gemm", {grid, kThreads}, multiply, args);
}

}  // namespace warprow::cuda
