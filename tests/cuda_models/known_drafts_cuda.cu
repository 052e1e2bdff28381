// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "tests/cuda_models/known_drafts_cuda.h"

namespace warprow::test {
namespace {

constexpr int32_t kThreads = 128;

__global__ void propose_kernel(const __grid_constant__ ProposeKnown op, int64_t num_items) {
  cuda::pdl_wait();
  cuda::pdl_release();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < num_items) {
    op(i);
  }
}

}  // namespace

void launch_propose_on_cuda(Stream& stream, const ProposeKnown& op, int64_t num_items) {
  if (stream.device().shape_only()) {
    return;
  }
  cuda::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>((num_items + kThreads - 1) / kThreads));
  shape.block = dim3(kThreads);
  cuda::launch(stream, "propose_known", shape, propose_kernel, op, num_items);
}

}  // namespace warprow::test
