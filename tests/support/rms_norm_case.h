// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/norm/rms_norm.h"
#include "tests/support/op_case.h"

#include <cmath>
#include <vector>

namespace warprow::testing {

struct RmsNormCase {
  int64_t rows = 1;
  int64_t width = 1;
  DType in = DType::kF32;
  DType out = DType::kF32;
  int64_t gap = 0;  // elements between rows of x and of the output
  float eps = 1e-5F;
  uint32_t seed = 1;

  [[nodiscard]] CaseMatrix matrix() const { return {rows, width, gap}; }
  [[nodiscard]] std::vector<float> x() const {
    return rounded_to(in, normals(matrix().size(), seed, 3.0F));
  }
  [[nodiscard]] std::vector<float> weight() const {
    return normals(static_cast<size_t>(width), seed + 1, 0.2F, 1.0F);
  }

  [[nodiscard]] RmsNormArgs args(CaseMemory& memory) const {
    return {.x = matrix().view(in, memory.put_as(in, x())),
            .weight = make_view<const float>(memory.put(weight()), width),
            .out = matrix().view(out, matrix().put_unwritten(memory, out)),
            .eps = eps};
  }
  // The whole output buffer, including the gaps.
  [[nodiscard]] std::vector<double> reference() const {
    const std::vector<float> values = x();
    const std::vector<float> weights = weight();
    std::vector<double> result = matrix().unwritten();
    for (int64_t t = 0; t < rows; ++t) {
      const float* row = values.data() + t * matrix().stride();
      double squares = 0.0;
      for (int64_t i = 0; i < width; ++i) {
        squares += static_cast<double>(row[i]) * row[i];
      }
      const double factor =
          1.0 / std::sqrt(squares / static_cast<double>(width) + static_cast<double>(eps));
      for (int64_t i = 0; i < width; ++i) {
        result[static_cast<size_t>(t * matrix().stride() + i)] =
            row[i] * factor * weights[static_cast<size_t>(i)];
      }
    }
    return result;
  }
  [[nodiscard]] double bytes() const {
    return static_cast<double>(rows * width) *
           static_cast<double>(dtype_bytes(in) + dtype_bytes(out));
  }
};

}  // namespace warprow::testing
