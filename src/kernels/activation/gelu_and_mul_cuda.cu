// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/activation/gelu_and_mul.h"
#include "kernels/simd/vec_cuda.cuh"

// Formula, shapes, preconditions: gelu_and_mul.h. x and out are bf16.
// Mapping: a CTA takes 128 outputs of one row, a thread one.
// Bytes moved: 6 * T * width.
// Numerics: float32 with the fast exponential and division (a few ulp), one rounding to bf16; an output
//   depends on its own two inputs alone.
namespace warprow::cuda {
namespace {

constexpr int kThreads = 128;

struct Rows {
  const Bf16* x;
  int64_t x_stride;
  Bf16* out;
  int64_t out_stride;
  int32_t width;
};

__device__ __forceinline__ float gelu_times(float gate, float up) {
  const float twice_u = 1.5957691216057308F * gate * (1.0F + 0.044715F * gate * gate);
  return __fdividef(gate, 1.0F + __expf(-twice_u)) * up;
}

__global__ void __launch_bounds__(kThreads) gelu_rows(Rows a) {
  pdl_wait();
  pdl_release();
  const int column = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (column >= a.width) {
    return;
  }
  const Bf16* row = a.x + blockIdx.x * a.x_stride + column;
  store(a.out + blockIdx.x * a.out_stride + column,
        gelu_times(to_float(row[0]), to_float(row[a.width])));
}

}  // namespace

void gelu_and_mul(Stream& stream, const GeluAndMulArgs& args) {
  WR_CHECK_EQ(args.x.shape[0], args.out.shape[0]);
  WR_CHECK_EQ(args.x.shape[1], 2 * args.out.shape[1]);
  WR_CHECK(args.x.dtype == DType::kBF16 && args.out.dtype == DType::kBF16);
  if (args.out.shape[0] == 0) {
    return;
  }
  const Rows rows{.x = static_cast<const Bf16*>(args.x.data),
                  .x_stride = args.x.stride,
                  .out = static_cast<Bf16*>(args.out.data),
                  .out_stride = args.out.stride,
                  .width = static_cast<int32_t>(args.out.shape[1])};
  const LaunchShape shape{dim3(static_cast<unsigned>(args.out.shape[0]),
                               static_cast<unsigned>(ceil_div(rows.width, kThreads))),
                          kThreads};
  launch(stream, "gelu_and_mul", shape, gelu_rows, rows);
}

}  // namespace warprow::cuda
