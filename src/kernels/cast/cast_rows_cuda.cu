// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/cast/cast_rows.h"
#include "kernels/cuda/vector_access.cuh"

// Formula, shapes, preconditions: cast_rows.h.
// Mapping: a CTA takes 256 adjacent elements of one row, a thread one element.
// Bytes moved: T * width * (4 + element of out).
// Numerics: bf16 is rounded to nearest even.
namespace warprow::cuda {
namespace {

constexpr int kThreads = 256;

template <typename Out>
struct Rows {
  const float* x;
  int64_t x_stride;
  Out* out;
  int64_t out_stride;
  int32_t width;
};

template <typename Out>
__global__ void __launch_bounds__(kThreads) cast_elements(Rows<Out> a) {
  pdl_wait();
  pdl_release();
  const int column = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (column < a.width) {
    store(a.out + blockIdx.x * a.out_stride + column, a.x[blockIdx.x * a.x_stride + column]);
  }
}

template <typename Out>
void launch_cast(Stream& stream, const CastRowsArgs& args) {
  const Rows<Out> rows{.x = args.x.data,
                       .x_stride = args.x.stride[0],
                       .out = static_cast<Out*>(args.out.data),
                       .out_stride = args.out.stride,
                       .width = static_cast<int32_t>(args.x.shape[1])};
  const LaunchShape shape{dim3(static_cast<unsigned>(args.x.shape[0]),
                               static_cast<unsigned>(ceil_div(rows.width, kThreads))),
                          kThreads};
  launch(stream, "cast_rows", shape, cast_elements<Out>, rows);
}

}  // namespace

void cast_rows(Stream& stream, const CastRowsArgs& args) {
  WR_CHECK_EQ(args.x.shape[0], args.out.shape[0]);
  WR_CHECK_EQ(args.x.shape[1], args.out.shape[1]);
  if (args.x.shape[0] == 0) {
    return;
  }
  if (args.out.dtype == DType::kF32) {
    launch_cast<float>(stream, args);
  } else {
    launch_cast<Bf16>(stream, args);
  }
}

}  // namespace warprow::cuda
