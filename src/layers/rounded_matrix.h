// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weights/quant_matrix.h"

#include <cstdint>
#include <functional>
#include <memory>

namespace warprow {

// Fills `out` with a row of a matrix that is not quantised.
using FloatRow = std::function<void(int64_t row, float* out)>;

// The matrix [rows, cols], quantised to e4m3 while it is loaded: a scale for each row, the row's largest magnitude over 448;
// numbers to nearest, ties to even. Products round their inputs, each row with its own scale.
std::unique_ptr<QuantMatrix> rounded_matrix(int64_t rows, int64_t cols, FloatRow row);

}  // namespace warprow
