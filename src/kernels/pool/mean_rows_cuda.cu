// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/pool/mean_rows.h"

// Formula, shapes, numerics: mean_rows.h. x is bf16 or float32.
// Mapping: a CTA has 128 columns of a range, a thread one.
namespace warprow::cuda {
namespace {

constexpr int kThreads = 128;

template <typename T>
struct Ranges {
  const T* x;
  int64_t x_stride;
  const int32_t* starts;
  float* out;
  int64_t out_stride;
  int32_t width;
};

template <typename T>
__global__ void __launch_bounds__(kThreads) mean_of_ranges(Ranges<T> a) {
  pdl_wait();
  pdl_release();
  const int column = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (column >= a.width) {
    return;
  }
  const int32_t begin = a.starts[blockIdx.x];
  const int32_t end = a.starts[blockIdx.x + 1];
  double sum = 0.0;
  const T* at = a.x + begin * a.x_stride + column;
#pragma unroll 8
  for (int32_t t = begin; t < end; ++t, at += a.x_stride) {
    sum += static_cast<double>(to_float(*at));
  }
  a.out[blockIdx.x * a.out_stride + column] =
      static_cast<float>(sum / static_cast<double>(max(1, end - begin)));
}

template <typename T>
void launch_means(Stream& stream, const MeanRowsArgs& args) {
  const Ranges<T> ranges{.x = static_cast<const T*>(args.x.data),
                         .x_stride = args.x.stride,
                         .starts = args.starts.data,
                         .out = args.out.data,
                         .out_stride = args.out.stride[0],
                         .width = static_cast<int32_t>(args.x.shape[1])};
  const LaunchShape shape{dim3(static_cast<unsigned>(args.out.shape[0]),
                               static_cast<unsigned>(ceil_div(ranges.width, kThreads))),
                          kThreads};
  launch(stream, "mean_rows", shape, mean_of_ranges<T>, ranges);
}

}  // namespace

void mean_rows(Stream& stream, const MeanRowsArgs& args) {
  WR_CHECK_EQ(args.starts.shape[0], args.out.shape[0] + 1);
  WR_CHECK_EQ(args.out.shape[1], args.x.shape[1]);
  WR_CHECK(args.x.dtype == DType::kF32 || args.x.dtype == DType::kBF16);
  if (args.out.shape[0] == 0) {
    return;
  }
  if (args.x.dtype == DType::kF32) {
    launch_means<float>(stream, args);
  } else {
    launch_means<Bf16>(stream, args);
  }
}

}  // namespace warprow::cuda
