// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/activation/sigmoid_mul.h"
#include "kernels/cuda/vector_access.cuh"

// Formula, shapes, preconditions: sigmoid_mul.h. gate and y are both bf16 or both float32.
namespace warprow::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
struct Rows {
  const T* gate;
  int64_t gate_stride;
  T* y;
  int64_t y_stride;
  int32_t width;
};

template <typename T>
__global__ void __launch_bounds__(kThreads) mul_rows(Rows<T> a) {
  pdl_wait();
  pdl_release();
  const T* gate = a.gate + blockIdx.x * a.gate_stride;
  T* y = a.y + blockIdx.x * a.y_stride;
  for (int i = static_cast<int>(threadIdx.x); i < a.width; i += kThreads) {
    store(y + i, to_float(y[i]) / (1.0F + expf(-to_float(gate[i]))));
  }
}

template <typename T>
void launch_rows(Stream& stream, const SigmoidMulArgs& args) {
  const Rows<T> rows{.gate = static_cast<const T*>(args.gate.data),
                     .gate_stride = args.gate.stride,
                     .y = static_cast<T*>(args.y.data),
                     .y_stride = args.y.stride,
                     .width = static_cast<int32_t>(args.y.shape[1])};
  const auto blocks = static_cast<unsigned>(args.y.shape[0]);
  launch(stream, "sigmoid_mul", {blocks, kThreads}, mul_rows<T>, rows);
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
