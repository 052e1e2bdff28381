// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/simd/dispatch.h"

#include <cstdint>

namespace warprow::cpu {

// RmsNormArgs as plain pointers.
struct RmsNormLoop {
  const float* x;
  int64_t x_stride;
  const float* weight;
  float* out;
  int64_t out_stride;
  int32_t width;
  float eps;
};

// Normalises rows [begin, end).
WR_ISA_DECLARE(void, rms_norm_rows, (const RmsNormLoop& a, int64_t begin, int64_t end));

}  // namespace warprow::cpu
