// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weights/checkpoint.h"

#include <cstddef>
#include <cstdint>

namespace warprow {

// A rectangle of a tensor: rows [first_row, first_row + rows), columns likewise. Both ends of its
// columns lie between blocks of the tensor's type, so that each of its rows is a run of bytes.
class TensorRegion {
 public:
  TensorRegion() = default;
  // All of it.
  explicit TensorRegion(const TensorSource& tensor)
      : TensorRegion(tensor, 0, tensor.rows, 0, tensor.cols) {}
  // Within the tensor and between blocks (checked).
  TensorRegion(
      const TensorSource& tensor, int64_t first_row, int64_t rows, int64_t first_col, int64_t cols);

  [[nodiscard]] const TensorSource& tensor() const { return *tensor_; }
  [[nodiscard]] TensorType type() const { return tensor_->type; }
  [[nodiscard]] int64_t rows() const { return rows_; }
  [[nodiscard]] int64_t cols() const { return cols_; }
  [[nodiscard]] size_t row_bytes() const { return row_bytes_; }
  [[nodiscard]] size_t bytes() const { return static_cast<size_t>(rows_) * row_bytes_; }
  // Whether its rows follow each other without a gap.
  [[nodiscard]] bool contiguous() const { return row_bytes_ == tensor_->row_bytes; }

  // Row `row` of the region: in the mapped file, and its place in Checkpoint::files().
  [[nodiscard]] const std::byte* row(int64_t row) const { return tensor_->data + offset(row); }
  [[nodiscard]] uint64_t file_offset(int64_t row) const { return tensor_->offset + offset(row); }

  // Its bytes have been copied (Checkpoint::drop_pages); what lies between its rows goes with them.
  void drop_pages(const Checkpoint& checkpoint) const;

 private:
  [[nodiscard]] size_t offset(int64_t row) const {
    return first_ + static_cast<size_t>(row) * tensor_->row_bytes;
  }

  const TensorSource* tensor_ = nullptr;
  int64_t rows_ = 0;
  int64_t cols_ = 0;
  size_t row_bytes_ = 0;
  size_t first_ = 0;  // of the region in the tensor's bytes
};

}  // namespace warprow
