// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/view.h"
#include "kernels/op.h"

namespace warprow {

// Divides the logits of the head by a constant, and caps them softly.
//
// Formula: v = logits[t, i] / divisor; logits[t, i] = v, or soft_cap * tanh(v / soft_cap) if soft_cap is above 0.
// Shapes: logits [T, width] (any row stride), in place.
// Mapping: CPU: rows in parallel, lanes along the row. CUDA: a thread an element.
// Bytes moved: 8 * T * width.
// Numerics: float32; an element depends on itself alone.
// Preconditions: divisor is not 0.
// Origin: soft cap: Bello et al., "Neural Combinatorial Optimization with Reinforcement Learning", 2016, as Gemma 2
//   has it.
struct CapLogitsArgs {
  View<float, 2> logits;
  float divisor = 1.0F;
  float soft_cap = 0.0F;  // 0: none
};

WR_OP(cap_logits, CapLogitsArgs);

}  // namespace warprow
