// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/view.h"
#include "kernels/op.h"

namespace warprow {

// Adds a product to the residual stream, for products whose own kernel does not add it.
//
// Formula: y[t, i] += scale * x[t, i].
// Shapes: x, y [T, width] (any row strides).
// Mapping: CPU: rows in parallel. CUDA: a thread an element.
// Bytes moved: 12 * T * width.
// Numerics: float32, scale * x rounded before the sum; an element depends on itself alone.
// Preconditions: y does not overlap x.
// Origin: own.
struct AddRowsArgs {
  View<const float, 2> x;
  View<float, 2> y;
  float scale = 1.0F;
};

WR_OP(add_rows, AddRowsArgs);

}  // namespace warprow
