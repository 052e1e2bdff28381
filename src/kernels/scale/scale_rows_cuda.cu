// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/scale/scale_rows.h"

// Formula, shapes, preconditions: scale_rows.h.
// Mapping: a CTA takes 256 adjacent elements of one row, a thread one element.
// Bytes moved: 8 * T * width.
// Numerics: float32.
namespace warprow::cuda {
namespace {

constexpr int kThreads = 256;

struct Rows {
  float* x;
  int64_t stride;
  int32_t width;
  float scale;
};

__global__ void __launch_bounds__(kThreads) scale_elements(Rows a) {
  pdl_wait();
  pdl_release();
  const int column = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (column < a.width) {
    a.x[blockIdx.x * a.stride + column] *= a.scale;
  }
}

}  // namespace

void scale_rows(Stream& stream, const ScaleRowsArgs& args) {
  if (args.x.shape[0] == 0) {
    return;
  }
  const Rows rows{.x = args.x.data,
                  .stride = args.x.stride[0],
                  .width = static_cast<int32_t>(args.x.shape[1]),
                  .scale = args.scale};
  const LaunchShape shape{dim3(static_cast<unsigned>(args.x.shape[0]),
                               static_cast<unsigned>(ceil_div(rows.width, kThreads))),
                          kThreads};
  launch(stream, "scale_rows", shape, scale_elements, rows);
}

}  // namespace warprow::cuda
