// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/linear/finish.cuh"

#include <cuda_runtime.h>

namespace warprow::cuda {

// The gate of an expert's feed-forward (expert_linear.h): SwiGLU, with a limit > 0 gpt-oss's form, with a limit < 0 gelu in
// place of silu.
inline constexpr float kGeluGate = -1.0F;

// Twice the argument of gelu's tanh.
__device__ __forceinline__ float gelu_argument(float v) {
  const float square = __fmul_rn(v, v);
  return __fmul_rn(__fmul_rn(1.5957691216057308F, v),
                   __fadd_rn(1.0F, __fmul_rn(0.044715F, square)));
}

__device__ __forceinline__ float expert_gate(float gate, float up, float limit) {
  if (limit < 0.0F) {
    const float gelu = __fdividef(gate, __fadd_rn(1.0F, __expf(-gelu_argument(gate))));
    return __fmul_rn(gelu, up);
  }
  if (limit == 0.0F) {
    return __fadd_rn(gated(gate, up), 0.0F);
  }
  gate = fminf(gate, limit);
  up = fminf(fmaxf(up, -limit), limit);
  const float swish = __fdividef(gate, __fadd_rn(1.0F, __expf(__fmul_rn(-1.702F, gate))));
  return __fmul_rn(__fadd_rn(up, 1.0F), swish);
}

}  // namespace warprow::cuda
