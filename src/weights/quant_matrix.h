// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "base/f8_inputs.h"
#include "weights/checkpoint.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace warprow {

// The neutral form of a matrix that a checkpoint keeps as several tensors.
struct QuantForm {
  QuantNumber number = QuantNumber::kF8;
  // Columns that share a scale and a zero point: 32, 64 or 128 (also where more share one), else 1.
  int32_t group = 128;
  int32_t zero_point = 0;  // of all groups, unless has_zeros
  bool has_zeros = false;
  bool half_scales = false;  // every scale is an IEEE half
  bool bf16_scales = false;  // every scale is a bf16
  // kQ8 on a CPU: activations may share a scale where the numbers do, instead of 32 of them.
  bool wide_inputs = false;
  // kF8: how products round their inputs.
  F8Inputs inputs = F8Inputs::kNone;
  float input_scale = 1.0F;  // F8Inputs::kStatic
  // A rank's columns begin at a multiple of this.
  int64_t col_unit = 1;

  bool operator==(const QuantForm&) const = default;
};

// Rows and columns of a matrix.
struct QuantPart {
  int64_t row = 0;
  int64_t num_rows = 0;
  int64_t col = 0;
  int64_t num_cols = 0;
};

// Room for a part: numbers [num_rows, num_cols], scales and zeros [num_rows, ceil(num_cols / group)].
struct QuantBuffers {
  std::vector<uint8_t> numbers;
  std::vector<float> scales;
  std::vector<uint8_t> zeros;

  void resize(const QuantForm& form, const QuantPart& part);
};

// A quantised matrix [rows, cols], read in parts. Columns of a part begin at a multiple of the group.
// Thread: read from any thread.
class QuantMatrix {
 public:
  virtual ~QuantMatrix() = default;
  [[nodiscard]] const QuantForm& form() const { return form_; }
  [[nodiscard]] int64_t rows() const { return rows_; }
  [[nodiscard]] int64_t cols() const { return cols_; }
  [[nodiscard]] const std::string& format() const { return format_; }  // for messages
  // Bytes of the file.
  [[nodiscard]] virtual size_t bytes() const { return 0; }

  virtual void read(const QuantPart& part, QuantBuffers& out) const = 0;
  // The part was read: its pages may leave this process's memory.
  virtual void drop_pages() const {}

 protected:
  QuantForm form_;
  int64_t rows_ = 0;
  int64_t cols_ = 0;
  std::string format_;
};

// The numbers' values times their scales, in float32: [num_rows, num_cols].
void dequantise(const QuantForm& form, const QuantPart& part, const QuantBuffers& from, float* out);

// The matrix of the weight `name` ("....weight"), if the checkpoint has it quantised; null if it has not. Errors: parts that
// are missing, have other types or shapes than the weight [rows, cols] wants, or hold what the format excludes.
Result<std::unique_ptr<QuantMatrix>> find_quant_matrix(const Checkpoint& checkpoint,
                                                       const std::string& name,
                                                       int64_t rows,
                                                       int64_t cols);

}  // namespace warprow
