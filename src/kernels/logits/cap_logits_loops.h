// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/simd/dispatch.h"

#include <cstdint>

namespace warprow::cpu {

// One row, in place: x[i] = cap * tanh(x[i] / divisor / cap), or x[i] / divisor if cap is 0; i < n.
WR_ISA_DECLARE(void, cap_logits_row, (float* x, int32_t n, float divisor, float cap));

}  // namespace warprow::cpu
