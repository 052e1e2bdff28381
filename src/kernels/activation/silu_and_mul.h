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

}  // namespace warprow
