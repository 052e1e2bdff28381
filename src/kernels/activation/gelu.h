// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/act_view.h"
#include "kernels/op.h"

namespace warprow {

// GELU in place, between two products without a gate.
//
// Formula: x[t, i] = gelu(x[t, i]). Exact: gelu(v) = v / 2 * (1 + erf(v / sqrt(2))). Its tanh form: v / 2 * (1 + tanh(u)) =
//   v / (1 + e^-2u), u = sqrt(2 / pi) * (v + 0.044715 v^3).
// Shapes: x [T, width] (any row stride); T may be 0.
// Mapping: CPU: rows in parallel, lanes along the row. CUDA: a thread eight elements, or one.
// Bytes moved: 2 * T * width elements.
// Numerics: float32. On a CPU erf is within 2e-7, with AVX-512 within 1e-7; every element by itself.
// Origin: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016; on a CPU erf is 7.1.26 of Abramowitz and Stegun,
//   "Handbook of Mathematical Functions", 1964, and with AVX-512 a table of polynomials (act_and_mul_loops.inl).
struct GeluArgs {
  ActView x;
  bool exact = true;
};

WR_OP(gelu, GeluArgs);

}  // namespace warprow
