// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "weights/checkpoint.h"

#include <cstdint>
#include <vector>

namespace warprow {

// Rows of a matrix as float32. Errors: a row that the tensor does not have.
Result<std::vector<float>> read_rows(const TensorSource& tensor, const std::vector<int64_t>& rows);

}  // namespace warprow
