// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/act_view.h"
#include "kernels/op.h"

namespace warprow {

// SwiGLU gate of a feed-forward layer.
//
// Formula: out[t, i] = silu(x[t, i]) * x[t, width + i], silu(v) = v / (1 + e^-v).
// Shapes: x [T, 2 * width], gate and up side by side; out [T, width] (any row strides).
// Mapping: CPU: rows in parallel, lanes along the row.
// Bytes moved: 12 * T * width.
// Numerics: float32, e^x within 2 ulp; a pair of inputs gives the same result at every position.
// Preconditions: widths agree; out does not overlap x.
// Origin: Shazeer, "GLU Variants Improve Transformer", 2020.
struct SiluAndMulArgs {
  ConstActView x;
  ActView out;
};

WR_OP(silu_and_mul, SiluAndMulArgs);

// GELU gate of a feed-forward layer.
//
// Formula: out[t, i] = gelu(x[t, i]) * x[t, width + i]; gelu as in gelu.h.
// Shapes: x [T, 2 * width], gate and up side by side; out [T, width] (any row strides).
// Mapping: CPU: rows in parallel, lanes along the row. CUDA: a thread an output.
// Bytes moved: 12 * T * width; on CUDA 6 * T * width.
// Numerics: float32, e^x within 2 ulp; a pair of inputs gives the same result at every position.
// Preconditions: widths agree; out does not overlap x.
// Origin: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016; Shazeer, "GLU Variants Improve
//   Transformer", 2020.
struct GeluAndMulArgs {
  ConstActView x;
  ActView out;
  bool exact = false;  // GELU itself, not its tanh form
};

WR_OP(gelu_and_mul, GeluAndMulArgs);

}  // namespace warprow
