// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/simd/dispatch.h"

#include <cstdint>

namespace warprow::cpu {

// One row: v[i] = sum over j < num_rows of weights[j] * x[places[j] * stride + i], i < n; y[i] = v[i], or with `add`
// y[i] += v[i].
struct CombineRow {
  const float* x;
  int64_t stride;
  const int32_t* places;
  const float* weights;
  int32_t num_rows;
  bool add;
  float* y;
  int64_t n;
};
WR_ISA_DECLARE(void, combine_experts_row, (const CombineRow& row));

}  // namespace warprow::cpu
