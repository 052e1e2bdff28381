// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/simd/dispatch.h"

#include <cstdint>

namespace warprow::cpu {

// One row: out[i] = silu(gate[i]) * up[i], i < n.
WR_ISA_DECLARE(void, silu_and_mul_row, (const float* gate, const float* up, int32_t n, float* out));
// One row: out[i] = gelu(gate[i]) * up[i], i < n; the tanh form of GELU, or GELU itself.
WR_ISA_DECLARE(void, gelu_and_mul_row, (const float* gate, const float* up, int32_t n, float* out));
WR_ISA_DECLARE(void,
               exact_gelu_and_mul_row,
               (const float* gate, const float* up, int32_t n, float* out));
// One row: x[i] = gelu(x[i]), i < n.
WR_ISA_DECLARE(void, gelu_row, (float* x, int32_t n));
WR_ISA_DECLARE(void, exact_gelu_row, (float* x, int32_t n));
// One row: y[i] *= sigmoid(gate[i]), i < n.
WR_ISA_DECLARE(void, sigmoid_mul_row, (const float* gate, int32_t n, float* y));
// One row: out[i] = (u + 1) * g * sigmoid(1.702 g) with g = min(gate[i], limit), u = up[i] clamped to +-limit, i < n.
WR_ISA_DECLARE(void,
               clamped_swiglu_row,
               (const float* gate, const float* up, int32_t n, float limit, float* out));

}  // namespace warprow::cpu
