// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/view.h"
#include "kernels/act_view.h"
#include "kernels/op.h"

namespace warprow {

// LayerNorm of x, or of the sum x + add.
//
// Formula: s = x + add, or x where add is empty; out = (s - mean(s)) / sqrt(variance(s) + eps) * weight + bias.
// Shapes: x, add, out [T, width] (any row strides); weight, bias [width], bias may be empty.
// Mapping: CPU: rows in parallel, lanes along the row. CUDA: a CTA a row.
// Bytes moved: T * width * (elements of x, add and out).
// Numerics: float32 throughout; the variance is the mean of squared differences from the mean. Sums have one order a
//   width: a row's result depends on that row alone.
// Preconditions: widths agree; out may be x or add itself. On CUDA add and out have one type, and x that type or float32.
// Origin: Ba et al., "Layer Normalization", 2016.
struct LayerNormArgs {
  ConstActView x;
  ConstActView add;  // empty: none
  View<const float, 1> weight;
  View<const float, 1> bias;  // empty: none
  ActView out;
  float eps = 1e-5F;
};

WR_OP(layer_norm, LayerNormArgs);

}  // namespace warprow
