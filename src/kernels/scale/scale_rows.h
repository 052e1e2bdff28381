// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/view.h"
#include "kernels/op.h"

namespace warprow {

// Multiplies the residual stream by a constant.
//
// Formula: x[t, i] *= scale.
// Shapes: x [T, width] (any row stride).
// Mapping: CPU: rows in parallel. CUDA: a thread an element.
// Bytes moved: 8 * T * width.
// Numerics: float32; an element depends on itself alone.
// Preconditions: none.
// Origin: own.
struct ScaleRowsArgs {
  View<float, 2> x;
  float scale = 1.0F;
};

WR_OP(scale_rows, ScaleRowsArgs);

}  // namespace warprow
