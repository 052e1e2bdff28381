// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weights/quant_matrix.h"

#include <cstdint>
#include <functional>
#include <memory>

namespace warprow {

// Fills `out` with a row of a matrix that is not quantised.
using FloatRow = std::function<void(int64_t row, float* out)>;

// The matrix [rows, cols], quantised while it is loaded. kF8: a scale for each row, the row's largest magnitude over 448.
// kQ4, kQ8: symmetric, a bf16 that is a half too for each `group` columns (32, 64 or 128), the largest magnitude over 7 or 127. Numbers are to
// nearest, ties to even.
// inputs: of kF8, how products round their inputs.
std::unique_ptr<QuantMatrix> rounded_matrix(QuantNumber number,
                                            int32_t group,
                                            int64_t rows,
                                            int64_t cols,
                                            FloatRow row,
                                            F8Inputs inputs = F8Inputs::kNone);

}  // namespace warprow
