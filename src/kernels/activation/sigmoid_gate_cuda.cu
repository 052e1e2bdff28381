// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/activation/sigmoid_gate.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vector_access.cuh"

// Formula, shapes, preconditions: sigmoid_gate.h. x and y are both bf16 or both float32.
// Mapping: a CTA a row. Its threads sum the products of every 256th input, then scale every 256th element.
// Numerics: float32; a thread adds its products in order, then a butterfly over lanes, then over warps.
namespace warprow::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

template <typename T>
struct Rows {
  const T* x;
  int64_t x_stride;
  const float* gate;
  int32_t inputs;
  T* y;
  int64_t y_stride;
  int32_t width;
};

template <typename T>
__global__ void __launch_bounds__(kThreads) gate_rows(Rows<T> a) {
  __shared__ float sums[kWarps];
  pdl_wait();
  pdl_release();
  const T* x = a.x + blockIdx.x * a.x_stride;
  const int thread = static_cast<int>(threadIdx.x);
  float sum = 0.0F;
  for (int k = thread; k < a.inputs; k += kThreads) {
    sum = fmaf(a.gate[k], to_float(x[k]), sum);
  }
  sum = sum_of_lanes(sum);
  if (thread % 32 == 0) {
    sums[thread / 32] = sum;
  }
  __syncthreads();
  sum = sum_of_lanes(thread % 32 < kWarps ? sums[thread % 32] : 0.0F);
  const float scale = 1.0F / (1.0F + expf(-sum));
  T* y = a.y + blockIdx.x * a.y_stride;
  for (int i = thread; i < a.width; i += kThreads) {
    store(y + i, to_float(y[i]) * scale);
  }
}

template <typename T>
void launch_rows(Stream& stream, const SigmoidGateArgs& args) {
  const Rows<T> rows{.x = static_cast<const T*>(args.x.data),
                     .x_stride = args.x.stride,
                     .gate = args.gate.data,
                     .inputs = static_cast<int32_t>(args.x.shape[1]),
                     .y = static_cast<T*>(args.y.data),
                     .y_stride = args.y.stride,
                     .width = static_cast<int32_t>(args.y.shape[1])};
  const auto blocks = static_cast<unsigned>(args.y.shape[0]);
  launch(stream, "sigmoid_gate", {blocks, kThreads}, gate_rows<T>, rows);
}

}  // namespace

void sigmoid_gate(Stream& stream, const SigmoidGateArgs& args) {
  WR_CHECK_EQ(args.x.shape[0], args.y.shape[0]);
  WR_CHECK_EQ(args.x.shape[1], args.gate.shape[0]);
  WR_CHECK(args.x.dtype == args.y.dtype, "x and y have different types");
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
