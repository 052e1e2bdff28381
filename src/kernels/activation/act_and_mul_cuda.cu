// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/activation/act_and_mul.h"
#include "kernels/cuda/vector_access.cuh"

// Formula, shapes, preconditions: act_and_mul.h. x and out are bf16.
// Mapping: SiLU: a CTA takes 128 groups of eight outputs of one row, a thread one group. GELU: a CTA takes 128 outputs, a
//   thread one.
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

__global__ void __launch_bounds__(kThreads) silu_rows(Rows a) {
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
__global__ void __launch_bounds__(kThreads) silu_rows_of_any_width(Rows a) {
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

// Checks the shapes. A view for the kernels.
Rows rows_of(const ConstActView& x, const ActView& out) {
  WR_CHECK_EQ(x.shape[0], out.shape[0]);
  WR_CHECK_EQ(x.shape[1], 2 * out.shape[1]);
  WR_CHECK(x.dtype == DType::kBF16 && out.dtype == DType::kBF16);
  return {.x = static_cast<const Bf16*>(x.data),
          .x_stride = x.stride,
          .out = static_cast<Bf16*>(out.data),
          .out_stride = out.stride,
          .width = static_cast<int32_t>(out.shape[1])};
}

}  // namespace

void silu_and_mul(Stream& stream, const SiluAndMulArgs& args) {
  const Rows rows = rows_of(args.x, args.out);
  if (args.out.shape[0] == 0) {
    return;
  }
  const bool fits = rows.width % kVec == 0 && rows_fit_vec(rows.x, rows.x_stride, sizeof(Bf16)) &&
                    rows_fit_vec(rows.out, rows.out_stride, sizeof(Bf16));
  const int a_block = fits ? kThreads * kVec : kThreads;
  const LaunchShape shape{dim3(static_cast<unsigned>(args.out.shape[0]),
                               static_cast<unsigned>(ceil_div(rows.width, a_block))),
                          kThreads};
  launch(stream, "silu_and_mul", shape, fits ? silu_rows : silu_rows_of_any_width, rows);
}

void gelu_and_mul(Stream& stream, const GeluAndMulArgs& args) {
  const Rows rows = rows_of(args.x, args.out);
  if (args.out.shape[0] == 0) {
    return;
  }
  const LaunchShape shape{dim3(static_cast<unsigned>(args.out.shape[0]),
                               static_cast<unsigned>(ceil_div(rows.width, kThreads))),
                          kThreads};
  launch(stream, "gelu_and_mul", shape, gelu_rows, rows);
}

}  // namespace warprow::cuda
