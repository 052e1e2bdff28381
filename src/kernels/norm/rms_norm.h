// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/view.h"
#include "kernels/act_view.h"
#include "kernels/op.h"

namespace warprow {

// RMSNorm.
//
// Formula: out = x / sqrt(mean(x^2) + eps) * weight.
// Shapes: x, out [T, width] (any row strides); weight [width].
// Mapping: CPU: rows in parallel, lanes along the row.
// Bytes moved: 8 * T * width.
// Numerics: float32 throughout, one fixed summation tree a row: a row's result depends on that row alone.
// Preconditions: widths agree; out may be x itself.
// Origin: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
struct RmsNormArgs {
  ConstActView x;
  View<const float, 1> weight;
  ActView out;
  float eps = 1e-5F;
};

WR_OP(rms_norm, RmsNormArgs);

}  // namespace warprow
