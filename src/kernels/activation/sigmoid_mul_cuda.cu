// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/activation/sigmoid_mul.h"
#include "kernels/cuda/vector_access.cuh"

// Formula, shapes, preconditions: sigmoid_mul.h. gate and y are both bf16 or both float32.
// Mapping: a thread has eight elements of a row, or one where rows are not aligned for that.
namespace warprow::cuda {
namespace {

constexpr int kThreads = 128;

template <typename T>
struct Rows {
  const T* gate;
  int64_t gate_stride;
  T* y;
  int64_t y_stride;
  int32_t width;
};

__device__ __forceinline__ float gated(float y, float gate) { return y / (1.0F + expf(-gate)); }

template <typename T, int kEach>
__global__ void __launch_bounds__(kThreads) mul_rows(Rows<T> a) {
  const int i = (static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x)) * kEach;
  pdl_wait();
  pdl_release();
  if (i >= a.width) {
    return;
  }
  const T* gate = a.gate + blockIdx.x * a.gate_stride + i;
  T* y = a.y + blockIdx.x * a.y_stride + i;
  if constexpr (kEach == kVec) {
    float g[kVec];
    float v[kVec];
    load8(gate, g);
    load8(y, v);
#pragma unroll
    for (int e = 0; e < kVec; ++e) {
      v[e] = gated(v[e], g[e]);
    }
    store8(y, v);
  } else {
    store(y, gated(to_float(*y), to_float(*gate)));
  }
}

template <typename T>
void launch_rows(Stream& stream, const SigmoidMulArgs& args) {
  const Rows<T> rows{.gate = static_cast<const T*>(args.gate.data),
                     .gate_stride = args.gate.stride,
                     .y = static_cast<T*>(args.y.data),
                     .y_stride = args.y.stride,
                     .width = static_cast<int32_t>(args.y.shape[1])};
  const bool vectors = rows.width % kVec == 0 &&
                       rows_fit_vec(rows.gate, rows.gate_stride, sizeof(T)) &&
                       rows_fit_vec(rows.y, rows.y_stride, sizeof(T));
  const int32_t threads = vectors ? rows.width / kVec : rows.width;
  const dim3 grid(static_cast<unsigned>(args.y.shape[0]),
                  static_cast<unsigned>(ceil_div(threads, kThreads)));
  launch(stream,
         "sigmoid_mul",
         {grid, kThreads},
         vectors ? &mul_rows<T, kVec> : &mul_rows<T, 1>,
         rows);
}

}  // namespace

void sigmoid_mul(Stream& stream, const SigmoidMulArgs& args) {
  WR_CHECK_EQ(args.gate.shape[0], args.y.shape[0]);
  WR_CHECK_EQ(args.gate.shape[1], args.y.shape[1]);
  WR_CHECK(args.gate.dtype == args.y.dtype, "gate and y have different types");
  if (args.y.shape[0] == 0) {
    return;
  }
  if (args.y.dtype == DType::kF32) {
    launch_rows<float>(stream, args);
  } else {
    launch_rows<Bf16>(stream, args);
  }
}

}  // namespace warprow::cuda
