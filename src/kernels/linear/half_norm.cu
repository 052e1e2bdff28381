// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/linear/half_norm.cuh"
#include "kernels/linear/half_norm.h"

namespace warprow::cuda {
namespace {

constexpr int kThreads = 256;

// kFours: chunks of four columns that a thread loads side by side.
template <int kFours>
__global__ void __launch_bounds__(kThreads) begin_norm_kernel(const float* y,
                                                              int64_t y_stride,
                                                              const float* weight,
                                                              uint2* rows,
                                                              float* squares,
                                                              int32_t width,
                                                              bool quartered) {
  const int64_t row = blockIdx.x;
  const unsigned lanes = 0xffffU << (threadIdx.x & 16U);
  const int32_t sums = (width + 63) / 64;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const auto load = [&](float4(&to)[kFours], const float* from, int32_t first) {
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const int32_t col = first + (thread + i * kThreads) * 4;
      to[i] = col < width ? *reinterpret_cast<const float4*>(from + col) : float4{};
    }
  };
  float4 w[kFours];
  load(w, weight, 0);
  pdl_release();
  pdl_wait();
  for (int32_t first = 0; first < sums * 64; first += kFours * kThreads * 4) {
    float4 v[kFours];
    load(v, y + row * y_stride, first);
    if (first > 0) {
      load(w, weight, first);
    }
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const int32_t col = first + (thread + i * kThreads) * 4;
      if (col < sums * 64) {  // all 16 lanes of a sum or none
        if (col < width) {
          const float4 x = weighted(v[i], w[i]);
          rows[(row * width + col) / 4] = {pack_bf16(x.x, x.y), pack_bf16(x.z, x.w)};
        }
        leave_squares(squares, row * sums + col / 64, v[i], lanes, quartered);
      }
    }
  }
}

}  // namespace

void begin_norm(Stream& stream, const View<const float, 2>& y, const HalfNorm& half) {
  const auto width = static_cast<int32_t>(y.shape[1]);
  WR_CHECK(width % 4 == 0 && y.stride[0] % 4 == 0, "width {}, stride {}", width, y.stride[0]);
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(y.shape[0]));
  shape.block = dim3(kThreads);
  launch(stream,
         "begin_norm",
         shape,
         width <= 1024   ? begin_norm_kernel<1>
         : width <= 2048 ? begin_norm_kernel<2>
                         : begin_norm_kernel<4>,
         y.data,
         y.stride[0],
         half.weight.data,
         static_cast<uint2*>(half.rows.data),
         half.squares,
         width,
         y.shape[0] <= kMaxQuarteredRows);
}

}  // namespace warprow::cuda
