// SPDX-License-Identifier: Apache-2.0
#include "layers/rounded_matrix.h"

#include "base/dtype.h"
#include "base/float8.h"
#include "base/math.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace warprow {
namespace {

class RoundedMatrix final : public QuantMatrix {
 public:
  RoundedMatrix(
      QuantNumber number, int32_t group, int64_t rows, int64_t cols, FloatRow row, F8Inputs inputs)
      : row_(std::move(row)) {
    form_.inputs = inputs;
    form_.number = number;
    form_.group = number == QuantNumber::kF8 ? 128 : group;
    form_.zero_point = number == QuantNumber::kF8 ? 0 : number == QuantNumber::kQ4 ? 8 : 128;
    form_.half_scales = number != QuantNumber::kF8;
    form_.col_unit = number == QuantNumber::kF8 ? 1 : group;
    rows_ = rows;
    cols_ = cols;
    format_ = number == QuantNumber::kF8 ? "fp8" : number == QuantNumber::kQ4 ? "int4" : "int8";
  }

  void read(const QuantPart& part, QuantBuffers& out) const override {
    std::vector<float> values(static_cast<size_t>(cols_));
    const int64_t groups = ceil_div<int64_t>(part.num_cols, form_.group);
    std::fill(out.zeros.begin(), out.zeros.end(), static_cast<uint8_t>(form_.zero_point));
    for (int64_t r = 0; r < part.num_rows; ++r) {
      row_(part.row + r, values.data());
      uint8_t* numbers = out.numbers.data() + r * part.num_cols;
      float* scales = out.scales.data() + r * groups;
      const float whole =
          form_.number == QuantNumber::kF8 ? f8_scale(largest(values.data(), cols_)) : 0.0F;
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t first = g * form_.group;
        const int64_t count = std::min<int64_t>(form_.group, part.num_cols - first);
        const float* from = values.data() + part.col + first;
        scales[g] = form_.number == QuantNumber::kF8 ? whole : half_scale(largest(from, count));
        for (int64_t i = 0; i < count; ++i) {
          numbers[first + i] = rounded(from[i] / scales[g]);
        }
      }
    }
  }

 private:
  static float largest(const float* values, int64_t count) {
    float most = 0.0F;
    for (int64_t i = 0; i < count; ++i) {
      most = std::max(most, std::fabs(values[i]));
    }
    return most;
  }
  // Of zeros alone: any.
  static float f8_scale(float most) { return most > 0.0F ? most / kMaxF8E4M3 : 1.0F; }
  [[nodiscard]] float half_scale(float most) const {
    // A bf16 that is a half too.
    const float scale = bf16_to_f32(f32_to_bf16(most / static_cast<float>(form_.zero_point - 1)));
    return std::clamp(scale, 0x1p-17F, 0x1p15F);
  }
  [[nodiscard]] uint8_t rounded(float v) const {
    if (form_.number == QuantNumber::kF8) {
      return f32_to_f8_e4m3(v);
    }
    const auto zero = static_cast<float>(form_.zero_point);
    return static_cast<uint8_t>(std::clamp(std::nearbyint(v), -zero, zero - 1.0F) + zero);
  }

  FloatRow row_;
};

}  // namespace

std::unique_ptr<QuantMatrix> rounded_matrix(
    QuantNumber number, int32_t group, int64_t rows, int64_t cols, FloatRow row, F8Inputs inputs) {
  return std::make_unique<RoundedMatrix>(number, group, rows, cols, std::move(row), inputs);
}

}  // namespace warprow
