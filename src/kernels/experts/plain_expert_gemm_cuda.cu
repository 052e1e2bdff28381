// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/experts/expert_gate.cuh"
#include "kernels/experts/sm90_expert_gemm.h"

#include <algorithm>
#include <cmath>
#include <cuda_runtime.h>

// Formula: as in expert_linear.h.
// Mapping: a CTA takes every gridDim-th item: 32 outputs of a tile of the work list, eight places at a time. A thread has
//   an output of a place. w and x come through shared memory in steps of 32 inputs.
// Numerics: float32 fused multiply-adds in the order of k.
// Preconditions: k a multiple of 8.
// Origin: own.
namespace warprow::cuda {
namespace {

constexpr int kOutputs = 32;
constexpr int kPlaces = 8;
constexpr int kStep = 32;

__device__ float gated_exactly(float gate, float up, float limit) {
  if (limit < 0.0F) {
    return gate / (1.0F + expf(-gelu_argument(gate))) * up;
  }
  if (limit == 0.0F) {
    return gate / (1.0F + expf(-gate)) * up;
  }
  gate = fminf(gate, limit);
  up = fminf(fmaxf(up, -limit), limit);
  return gate / (1.0F + expf(-1.702F * gate)) * (up + 1.0F);
}

template <typename T, bool kGates>
__global__ void __launch_bounds__(kOutputs* kPlaces) plain_expert_kernel(const ExpertGemmArgs a) {
  __shared__ float w_tile[kGates ? 2 : 1][kOutputs][kStep + 1];
  __shared__ float x_tile[kPlaces][kStep + 1];
  pdl_wait();
  pdl_release();
  const int output = static_cast<int>(threadIdx.x) % kOutputs;
  const int mine = static_cast<int>(threadIdx.x) / kOutputs;
  const int outputs = kGates ? a.n / 2 : a.n;
  const int parts = (outputs + kOutputs - 1) / kOutputs;
  const int items = a.tiles[0] * parts;
  const auto* w = static_cast<const T*>(a.w);
  for (int index = static_cast<int>(blockIdx.x); index < items;
       index += static_cast<int>(gridDim.x)) {
    const int* tile = a.tiles + 4 * (1 + index / parts);
    const int first = index % parts * kOutputs;
    for (int at = 0; at < tile[2]; at += kPlaces) {
      const int64_t place = tile[1] + at + mine;
      const bool is_row = at + mine < tile[2];
      const int64_t row = !is_row ? 0 : a.slots == nullptr ? place : a.slots[place] / a.num_chosen;
      float gate = 0.0F;
      float up = 0.0F;
      for (int k = 0; k < a.k; k += kStep) {
        __syncthreads();
        const int lane = k + output;
        x_tile[mine][output] = is_row && lane < a.k
                                   ? to_float(static_cast<const T*>(a.x)[row * a.x_stride + lane])
                                   : 0.0F;
        for (int r = mine; r < kOutputs; r += kPlaces) {
          const bool inside = lane < a.k && first + r < outputs;
          const int64_t of_w = (int64_t{tile[0]} * a.n + first + r) * a.k + lane;
          w_tile[0][r][output] = inside ? to_float(w[of_w]) : 0.0F;
          if constexpr (kGates) {
            w_tile[1][r][output] =
                inside ? to_float(w[of_w + static_cast<int64_t>(outputs) * a.k]) : 0.0F;
          }
        }
        __syncthreads();
        for (int i = 0; i < kStep; ++i) {
          gate = fmaf(w_tile[0][output][i], x_tile[mine][i], gate);
          if constexpr (kGates) {
            up = fmaf(w_tile[1][output][i], x_tile[mine][i], up);
          }
        }
      }
      if (is_row && first + output < outputs) {
        const float* bias =
            a.bias == nullptr ? nullptr : a.bias + int64_t{tile[0]} * a.n + first + output;
        float v = gate + (bias == nullptr ? 0.0F : bias[0]);
        if constexpr (kGates) {
          v = gated_exactly(v, up + (bias == nullptr ? 0.0F : bias[outputs]), a.gate_limit);
        }
        store(static_cast<T*>(a.y) + place * a.y_stride + first + output, v);
      }
    }
  }
}

}  // namespace

template <typename T>
void plain_expert_gemm(Stream& stream, const ExpertGemmArgs& args, LinearEpilogue epilogue) {
  const LaunchShape shape{static_cast<unsigned>(stream.device().facts().num_sms * 8),
                          kOutputs * kPlaces};
  if (epilogue == LinearEpilogue::kSwiGlu) {
    launch(stream, "plain_expert_gemm", shape, plain_expert_kernel<T, true>, args);
  } else {
    launch(stream, "plain_expert_gemm", shape, plain_expert_kernel<T, false>, args);
  }
}

template void plain_expert_gemm<float>(Stream&, const ExpertGemmArgs&, LinearEpilogue);
template void plain_expert_gemm<Bf16>(Stream&, const ExpertGemmArgs&, LinearEpilogue);

}  // namespace warprow::cuda
