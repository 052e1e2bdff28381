// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/act_view.h"
#include "kernels/op.h"

namespace warprow {

// Multiplies each element by the sigmoid of its own gate value.
//
// Formula: y[t, i] *= sigmoid(gate[t, i]), sigmoid(v) = 1 / (1 + e^-v).
// Shapes: gate, y [T, width] (any row strides); T may be 0.
// Mapping: CPU: rows in parallel. CUDA: a CTA a row.
// Bytes moved: 3 * T * width elements.
// Numerics: float32; every element by itself.
// Preconditions: y does not overlap gate.
// Origin: own; the output gate of Qwen3-Next's attention.
struct SigmoidMulArgs {
  ConstActView gate;
  ActView y;
};

WR_OP(sigmoid_mul, SigmoidMulArgs);

}  // namespace warprow
