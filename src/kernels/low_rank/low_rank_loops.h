// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/simd/dispatch.h"

#include <cstdint>

namespace warprow::cpu {

// out[r] = sum over i of a[r, i] * (x[i] * w[i]), r < rank; w null: ones. Lane l adds inputs l, l + lanes, ...; then the
// lanes are added in order.
WR_ISA_DECLARE(
    void,
    low_rank_dots,
    (const float* a, int32_t rank, const float* x, const float* w, int32_t k, float* out));
// The sum of squares of x [k], in the same order.
WR_ISA_DECLARE(float, low_rank_squares, (const float* x, int32_t k));
// y[j] += sum over r of s[r] * b[r, j], j < n; b [rank, stride].
WR_ISA_DECLARE(void,
               low_rank_add,
               (const float* b, int64_t stride, const float* s, int32_t rank, int32_t n, float* y));

}  // namespace warprow::cpu
