// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/stream.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/experts/route_experts.h"

#include <cstdint>
#include <cuda_runtime.h>

// What kernels that route rows share (route_experts.h).
namespace warprow::cuda {

struct Routing {
  const float* logits;
  int64_t stride;
  float* weights;
  int64_t weights_stride;
  int32_t* first;
  int32_t* slots;
  int32_t* places;
  int32_t* tiles;
  int32_t* counts;  // [CTAs, num_experts]
  const int32_t* num_rows;
  int32_t max_rows;
  int32_t num_experts;
  int32_t num_chosen;
  int32_t tile_places;
  int32_t rows_of_cta;
  bool of_chosen;
  bool normalise;
  bool by_sigmoid;
  int32_t num_groups;
  int32_t chosen_groups;
  float scale;
  const float* bias;           // or null
  const float* expert_scales;  // or null

  [[nodiscard]] __device__ int rows() const {
    return num_rows == nullptr ? max_rows : min(max_rows, *num_rows);
  }
};

// The router's product and the choice in one kernel (router_sm90_cuda.cu). parts: of k.
void route_with_product(Stream& stream,
                        const Routing& routing,
                        const RouterProduct& product,
                        int32_t parts);

// Larger for larger numbers, whatever their signs. NaN is above or below all numbers.
__device__ __forceinline__ uint32_t ordered(float v) {
  const uint32_t bits = __float_as_uint(v);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

__device__ __forceinline__ float sigmoid(float v) {
  return __fdiv_rn(1.0F, __fadd_rn(1.0F, expf(-v)));
}

// Lane j: the weight of choice j; `chosen` is its logit, `largest` that of choice 0.
template <int kPerLane>
__device__ float weight_of(const Routing& a,
                           const float (&logit)[kPerLane],
                           float chosen,
                           float largest) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool is_choice = lane < a.num_chosen;
  if (a.by_sigmoid) {
    const float weight = is_choice ? sigmoid(chosen) : 0.0F;
    return a.normalise ? __fdiv_rn(weight, __fadd_rn(sum_of_lanes(weight), 1e-20F)) : weight;
  }
  float weight = is_choice ? expf(chosen - largest) : 0.0F;
  if (a.of_chosen) {
    weight = weight / sum_of_lanes(weight);
  } else {
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      sum += i * 32 + lane < a.num_experts ? expf(logit[i] - largest) : 0.0F;
    }
    weight = weight / sum_of_lanes(sum);
  }
  return a.normalise ? weight / sum_of_lanes(weight) : weight;
}

// Lane j: writes the weight of the row's choice j.
template <int kPerLane>
__device__ __forceinline__ void write_weight(const Routing& a,
                                             int row,
                                             const float (&logit)[kPerLane],
                                             int32_t choice,
                                             float chosen,
                                             float largest) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float weight = __fmul_rn(weight_of(a, logit, chosen, largest), a.scale);
  if (lane < a.num_chosen) {
    if (a.expert_scales != nullptr) {
      weight = __fmul_rn(weight, a.expert_scales[choice]);
    }
    a.weights[row * a.weights_stride + lane] = weight;
  }
}

}  // namespace warprow::cuda
