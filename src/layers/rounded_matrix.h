// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weights/quant_matrix.h"

#include <cstdint>
#include <functional>
#include <memory>

namespace warprow {

// Fills `out` with a row of a matrix that is not quantised.
using FloatRow = std::function<void(int64_t row, float* out)>;

// The matrix [rows, cols], quantised while it is loaded; numbers to nearest, ties to even.
// kF8: e4m3 with a scale for each row, the least bf16 from the row's largest magnitude over 448 on. Products round their inputs,
// each row with its own scale.
// kQ8: int8 from -127 to 127 with a scale for each `group` inputs, an IEEE half: their largest magnitude over 127. It is
// NaN where a number is not finite. group: 32 or 128, of which cols is a multiple; activations then share a scale alike.
std::unique_ptr<QuantMatrix> rounded_matrix(
    QuantNumber number, int64_t rows, int64_t cols, int32_t group, FloatRow row);

}  // namespace warprow
