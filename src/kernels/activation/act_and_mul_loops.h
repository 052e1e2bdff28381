// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/simd/dispatch.h"

#include <cstdint>

namespace warprow::cpu {

// One row: out[i] = silu(gate[i]) * up[i], i < n.
WR_ISA_DECLARE(void, silu_and_mul_row, (const float* gate, const float* up, int32_t n, float* out));
// One row: out[i] = gelu(gate[i]) * up[i], i < n.
WR_ISA_DECLARE(void, gelu_and_mul_row, (const float* gate, const float* up, int32_t n, float* out));
// One row: y[i] *= sigmoid(gate[i]), i < n.
WR_ISA_DECLARE(void, sigmoid_mul_row, (const float* gate, int32_t n, float* y));

}  // namespace warprow::cpu
