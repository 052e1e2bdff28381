// SPDX-License-Identifier: Apache-2.0
#include "weights/tensor_region.h"

#include "base/check.h"

namespace warprow {

TensorRegion::TensorRegion(
    const TensorSource& tensor, int64_t first_row, int64_t rows, int64_t first_col, int64_t cols)
    : tensor_(&tensor),
      rows_(rows),
      cols_(cols),
      row_bytes_(tensor_row_bytes(tensor.type, cols)),
      first_(static_cast<size_t>(first_row) * tensor.row_bytes +
             tensor_row_bytes(tensor.type, first_col)) {
  WR_CHECK(first_row >= 0 && rows >= 0 && first_row <= tensor.rows - rows,
           "rows [{}, +{}) of {}",
           first_row,
           rows,
           tensor.rows);
  WR_CHECK(first_col >= 0 && cols >= 0 && first_col <= tensor.cols - cols,
           "columns [{}, +{}) of {}",
           first_col,
           cols,
           tensor.cols);
}

void TensorRegion::drop_pages(const Checkpoint& checkpoint) const {
  if (rows_ > 0) {
    checkpoint.drop_pages(*tensor_, first_, offset(rows_ - 1) + row_bytes_ - first_);
  }
}

}  // namespace warprow
