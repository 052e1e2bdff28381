// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/activation/silu_and_mul.h"
#include "kernels/simd/vec_cuda.cuh"

// Formula, shapes, preconditions: silu_and_mul.h. x and out are bf16.
// Mapping: a CTA takes 128 groups of eight outputs of one row, a thread one group.
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

__device__ __forceinline__ float silu_times(float gate, float up) {
  return __fdividef(gate, 1.0F + __expf(-gate)) * up;
}

__global__ void __launch_bounds__(kThreads) gate_rows(Rows a) {
  pdl_wait();
  pdl_release();
  const int column = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * kVec;
  if (column >= a.width) {
    return;
  }
  const Bf16* row = a.x + blockIdx.x * a.x_stride + column;
  float gate[kVec];
  float up[kVec];
  load8(row, gate);
  load8(row + a.width, up);
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    gate[i] = silu_times(gate[i], up[i]);
  }
  store8(a.out + blockIdx.x * a.out_stride + column, gate);
}

// For any width and alignment.
__global__ void __launch_bounds__(kThreads) gate_rows_of_any_width(Rows a) {
  pdl_wait();
  pdl_release();
  const int column = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (column >= a.width) {
    return;
  }
  const Bf16* row = a.x + blockIdx.x * a.x_stride + column;
  store(a.out + blockIdx.x * a.out_stride + column,
        silu_times(to_float(row[0]), to_float(row[a.width])));
}

}  // namespace

void silu_and_mul(Stream& stream, const SiluAndMulArgs& args) {
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
  const bool fits = rows.width % kVec == 0 && rows_fit_vec(rows.x, rows.x_stride, sizeof(Bf16)) &&
                    rows_fit_vec(rows.out, rows.out_stride, sizeof(Bf16));
  const int a_block = fits ? kThreads * kVec : kThreads;
  const LaunchShape shape{dim3(static_cast<unsigned>(args.out.shape[0]),
                               static_cast<unsigned>(ceil_div(rows.width, a_block))),
                          kThreads};
  launch(stream, "silu_and_mul", shape, fits ? gate_rows : gate_rows_of_any_width, rows);
}

}  // namespace warprow::cuda
