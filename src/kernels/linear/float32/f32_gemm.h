// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/stream.h"

#include <cstdint>

namespace warprow::cuda {

// A product of float32 rows and float32 weights, for --dtype float32. Slow, and exact: no tensor cores.
struct F32GemmArgs {
  const float* x = nullptr;  // [m, k], rows x_stride apart, 16-byte aligned
  int64_t x_stride = 0;
  const float* w = nullptr;     // [n, k], 16-byte aligned
  const float* bias = nullptr;  // [n] or null
  float* y = nullptr;           // [m, n], rows y_stride apart
  int64_t y_stride = 0;
  bool add = false;  // to y
  int32_t m = 0;
  int32_t n = 0;
  int32_t k = 0;
};

// Formula: y[t, j] = (add ? y[t, j] : 0) + (sum over i of w[j, i] * x[t, i] + bias[j]).
// Shapes: as above; k and x_stride are multiples of 4.
// Mapping: a CTA computes 64 rows by 64 outputs, a thread four by four of them. Both operands pass through shared memory,
//   32 inputs at a time.
// Bytes moved: 4 * (n * k * ceil(m / 64) + m * k * ceil(n / 64) + m * n).
// Numerics: float32. An output is one chain of fused multiply-adds over each 32 inputs, in order. These sums are added
//   in order, then the bias, then y. The order is fixed by k alone, so a row has the same bits among any rows.
// Preconditions: y overlaps neither x nor w.
// Origin: own.
void f32_gemm(Stream& stream, const F32GemmArgs& args);

}  // namespace warprow::cuda
