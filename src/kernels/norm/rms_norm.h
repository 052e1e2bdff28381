// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/view.h"
#include "kernels/op.h"

namespace warprow {

// RMS norm, with the residual add that comes before it in a decoder folded in.
//
// Formula: with a residual, residual += x and then x := residual; out = x / sqrt(mean(x^2) + eps) *
//   weight.
// Shapes: x, residual, out [T, width] (row strides free); weight [width].
// Mapping: CPU: rows in parallel, lanes along the row.
// Bytes moved: 8 * T * width, with a residual 16 * T * width.
// Numerics: float32 throughout, one fixed summation tree a row: a row's result depends on that row
//   alone.
// Preconditions: widths agree; out may be x or residual itself.
// Origin: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
struct RmsNormArgs {
  View<const float, 2> x;
  View<float, 2> residual;  // empty: none
  View<const float, 1> weight;
  View<float, 2> out;
  float eps = 1e-5F;
};

WR_OP(rms_norm, RmsNormArgs);

}  // namespace warprow
