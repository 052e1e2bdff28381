// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/logits/cap_logits.h"

// Formula, shapes, preconditions: cap_logits.h.
// Mapping: a CTA takes 256 adjacent elements of one row, a thread one element.
// Bytes moved: 8 * T * width.
// Numerics: float32, with tanhf.
namespace warprow::cuda {
namespace {

constexpr int kThreads = 256;

struct Rows {
  float* logits;
  int64_t stride;
  int32_t width;
  float divisor;
  float soft_cap;
};

__global__ void __launch_bounds__(kThreads) cap_elements(Rows a) {
  pdl_wait();
  pdl_release();
  const int column = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (column >= a.width) {
    return;
  }
  float* at = a.logits + blockIdx.x * a.stride + column;
  const float v = __fdiv_rn(*at, a.divisor);
  *at = a.soft_cap > 0.0F ? a.soft_cap * tanhf(__fdiv_rn(v, a.soft_cap)) : v;
}

}  // namespace

void cap_logits(Stream& stream, const CapLogitsArgs& args) {
  if (args.logits.shape[0] == 0) {
    return;
  }
  const Rows rows{.logits = args.logits.data,
                  .stride = args.logits.stride[0],
                  .width = static_cast<int32_t>(args.logits.shape[1]),
                  .divisor = args.divisor,
                  .soft_cap = args.soft_cap};
  const LaunchShape shape{dim3(static_cast<unsigned>(args.logits.shape[0]),
                               static_cast<unsigned>(ceil_div(rows.width, kThreads))),
                          kThreads};
  launch(stream, "cap_logits", shape, cap_elements, rows);
}

}  // namespace warprow::cuda
