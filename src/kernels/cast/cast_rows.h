// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/view.h"
#include "kernels/act_view.h"
#include "kernels/op.h"

namespace warprow {

// Converts the residual stream to activations, for products without a norm before them.
//
// Formula: out[t, i] = x[t, i], in out's element type.
// Shapes: x, out [T, width] (any row strides).
// Mapping: CPU: rows in parallel. CUDA: a thread an element.
// Bytes moved: T * width * (4 + element of out).
// Numerics: bf16 is rounded to nearest even.
// Preconditions: out does not overlap x; on a CPU out is float32.
// Origin: own.
struct CastRowsArgs {
  View<const float, 2> x;
  ActView out;
};

WR_OP(cast_rows, CastRowsArgs);

}  // namespace warprow
