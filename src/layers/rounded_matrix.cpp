// SPDX-License-Identifier: Apache-2.0
#include "layers/rounded_matrix.h"

#include "base/float8.h"
#include "base/math.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace warprow {
namespace {

class RoundedMatrix final : public QuantMatrix {
 public:
  RoundedMatrix(int64_t rows, int64_t cols, FloatRow row) : row_(std::move(row)) {
    form_.inputs = F8Inputs::kRow;
    rows_ = rows;
    cols_ = cols;
    format_ = "fp8";
  }

  void read(const QuantPart& part, QuantBuffers& out) const override {
    std::vector<float> values(static_cast<size_t>(cols_));
    const int64_t groups = ceil_div<int64_t>(part.num_cols, form_.group);
    std::fill(out.zeros.begin(), out.zeros.end(), uint8_t{0});
    for (int64_t r = 0; r < part.num_rows; ++r) {
      row_(part.row + r, values.data());
      const float most = largest(values);
      // Of zeros alone: any.
      const float scale = most > 0.0F ? most / kMaxF8E4M3 : 1.0F;
      std::fill_n(out.scales.data() + r * groups, groups, scale);
      const float* from = values.data() + part.col;
      std::transform(
          from, from + part.num_cols, out.numbers.data() + r * part.num_cols, [scale](float v) {
            return f32_to_f8_e4m3(v / scale);
          });
    }
  }

 private:
  static float largest(const std::vector<float>& values) {
    float most = 0.0F;
    for (const float value : values) {
      most = std::max(most, std::fabs(value));
    }
    return most;
  }

  FloatRow row_;
};

}  // namespace

std::unique_ptr<QuantMatrix> rounded_matrix(int64_t rows, int64_t cols, FloatRow row) {
  return std::make_unique<RoundedMatrix>(rows, cols, std::move(row));
}

}  // namespace warprow
