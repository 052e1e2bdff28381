// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/simd/dispatch.h"

#include <cstdint>

namespace warprow::cpu {

// One row: to[i] += scale * from[i], i < n.
WR_ISA_DECLARE(void, add_row, (const float* from, float scale, int64_t n, float* to));

}  // namespace warprow::cpu
