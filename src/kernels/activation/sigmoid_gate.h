// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/view.h"
#include "kernels/act_view.h"
#include "kernels/op.h"

namespace warprow {

// Scales each row of y by a gate, the sigmoid of a linear function of x's row.
//
// Formula: y[t, i] *= sigmoid(sum over k of gate[k] * x[t, k]), sigmoid(v) = 1 / (1 + e^-v).
// Shapes: x [T, inputs], gate [inputs], y [T, width] (any row strides); T may be 0.
// Mapping: CPU: rows in parallel. CUDA: a CTA a row.
// Bytes moved: T * (inputs + 2 * width) elements.
// Numerics: float32; the sum in 16 chains, input i in chain i mod 16, which are then added in order (CUDA: in its own
//   order, fixed by the number of inputs). A row's result depends on that row alone.
// Preconditions: y does not overlap x.
// Origin: own; the gate of Qwen2-MoE's shared expert.
struct SigmoidGateArgs {
  ConstActView x;
  View<const float, 1> gate;
  ActView y;
};

WR_OP(sigmoid_gate, SigmoidGateArgs);

}  // namespace warprow
