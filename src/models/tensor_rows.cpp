// SPDX-License-Identifier: Apache-2.0
#include "models/tensor_rows.h"

#include "weights/dequantize.h"

#include <fmt/format.h>

namespace warprow {

Result<std::vector<float>> read_rows(const TensorSource& tensor, const std::vector<int64_t>& rows) {
  std::vector<float> values(rows.size() * static_cast<size_t>(tensor.cols));
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] < 0 || rows[i] >= tensor.rows) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("tensor {}: no row {} of {}", tensor.name, rows[i], tensor.rows));
    }
    const std::byte* row = tensor.data + static_cast<size_t>(rows[i]) * tensor.row_bytes;
    dequantize_row(
        tensor.type, row, values.data() + i * static_cast<size_t>(tensor.cols), tensor.cols);
  }
  return values;
}

}  // namespace warprow
