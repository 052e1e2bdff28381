// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/simd/dispatch.h"

#include <cstdint>

namespace warprow::cpu {

// LayerNormArgs as plain pointers.
struct LayerNormLoop {
  const float* x;
  int64_t x_stride;
  const float* add;  // null: none
  int64_t add_stride;
  const float* weight;
  const float* bias;  // null: none
  float* out;
  int64_t out_stride;
  int32_t width;
  float eps;
};

// Normalises rows [begin, end).
WR_ISA_DECLARE(void, layer_norm_rows, (const LayerNormLoop& a, int64_t begin, int64_t end));

}  // namespace warprow::cpu
