// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/linear/finish.cuh"

#include <cstdint>
#include <cuda_runtime.h>

namespace warprow::cuda {

// The gate of an expert's feed-forward (expert_linear.h), by its limit: SwiGLU for 0, gpt-oss's form above, gelu in place of silu
// below.
inline constexpr float kGeluGate = -1.0F;
enum class GateForm : uint8_t { kSwiGlu, kLimited, kGelu };

// Twice the argument of gelu's tanh.
__device__ __forceinline__ float gelu_argument(float v) {
  const float square = __fmul_rn(v, v);
  return __fmul_rn(__fmul_rn(1.5957691216057308F, v),
                   __fadd_rn(1.0F, __fmul_rn(0.044715F, square)));
}

template <GateForm kForm>
__device__ __forceinline__ float expert_gate(float gate, float up, float limit) {
  if constexpr (kForm == GateForm::kGelu) {
    const float gelu = __fdividef(gate, __fadd_rn(1.0F, __expf(-gelu_argument(gate))));
    return __fmul_rn(gelu, up);
  } else if constexpr (kForm == GateForm::kSwiGlu) {
    return __fadd_rn(gated(gate, up), 0.0F);
  } else {
    gate = fminf(gate, limit);
    up = fminf(fmaxf(up, -limit), limit);
    const float swish = __fdividef(gate, __fadd_rn(1.0F, __expf(__fmul_rn(-1.702F, gate))));
    return __fmul_rn(__fadd_rn(up, 1.0F), swish);
  }
}

// Calls f with the form of gates of this limit as its template argument. One choice for many gates, so that they are computed
// side by side: a branch for each would have them wait for one another. Without gates any form will do.
template <bool kGates, typename F>
__device__ __forceinline__ void with_gate_form(float limit, F&& f) {
  if (!kGates || limit == 0.0F) {
    f.template operator()<GateForm::kSwiGlu>();
  } else if (limit > 0.0F) {
    f.template operator()<GateForm::kLimited>();
  } else {
    f.template operator()<GateForm::kGelu>();
  }
}

}  // namespace warprow::cuda
