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

__global__ void __launch_bounds__(kThreads) begin_norm_kernel(const float* y,
                                                              int64_t y_stride,
                                                              const float* weight,
                                                              uint2* rows,
                                                              float* squares,
                                                              int32_t width,
                                                              bool quartered) {
  pdl_wait();
  pdl_release();
  const int64_t row = blockIdx.x;
  const unsigned lanes = 0xffffU << (threadIdx.x & 16U);
  const int32_t sums = (width + 63) / 64;
  for (auto col = static_cast<int32_t>(threadIdx.x) * 4; col < sums * 64; col += kThreads * 4) {
    float4 v = {};
    if (col < width) {
      v = *reinterpret_cast<const float4*>(y + row * y_stride + col);
      const float4 x = weighted(v, __ldg(reinterpret_cast<const float4*>(weight + col)));
      rows[(row * width + col) / 4] = {pack_bf16(x.x, x.y), pack_bf16(x.z, x.w)};
    }
    leave_squares(squares, row * sums + col / 64, v, lanes, quartered);
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
         begin_norm_kernel,
         y.data,
         y.stride[0],
         half.weight.data,
         static_cast<uint2*>(half.rows.data),
         half.squares,
         width,
         y.shape[0] <= kMaxQuarteredRows);
}

}  // namespace warprow::cuda
