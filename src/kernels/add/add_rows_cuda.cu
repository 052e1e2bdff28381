// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/add/add_rows.h"

// Formula, shapes, preconditions: add_rows.h.
// Mapping: a CTA takes 256 adjacent elements of one row, a thread one element.
// Bytes moved: 12 * T * width.
// Numerics: scale * x is rounded before the sum.
namespace warprow::cuda {
namespace {

constexpr int kThreads = 256;

struct Rows {
  const float* x;
  int64_t x_stride;
  float* y;
  int64_t y_stride;
  int32_t width;
  float scale;
};

__global__ void __launch_bounds__(kThreads) add_scaled(Rows a) {
  pdl_wait();
  pdl_release();
  const int column = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (column >= a.width) {
    return;
  }
  float* y = a.y + blockIdx.x * a.y_stride + column;
  *y = __fadd_rn(*y, __fmul_rn(a.scale, a.x[blockIdx.x * a.x_stride + column]));
}

}  // namespace

void add_rows(Stream& stream, const AddRowsArgs& args) {
  WR_CHECK_EQ(args.x.shape[0], args.y.shape[0]);
  WR_CHECK_EQ(args.x.shape[1], args.y.shape[1]);
  if (args.y.shape[0] == 0) {
    return;
  }
  const Rows rows{.x = args.x.data,
                  .x_stride = args.x.stride[0],
                  .y = args.y.data,
                  .y_stride = args.y.stride[0],
                  .width = static_cast<int32_t>(args.y.shape[1]),
                  .scale = args.scale};
  const LaunchShape shape{dim3(static_cast<unsigned>(args.y.shape[0]),
                               static_cast<unsigned>(ceil_div(rows.width, kThreads))),
                          kThreads};
  launch(stream, "add_rows", shape, add_scaled, rows);
}

}  // namespace warprow::cuda
