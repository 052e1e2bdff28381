// SPDX-License-Identifier: Apache-2.0
#include "layers/rounded_matrix.h"

#include "base/check.h"
#include "base/float8.h"
#include "base/math.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

namespace warprow {
namespace {

float largest(const float* values, int64_t count) {
  float most = 0.0F;
  for (int64_t i = 0; i < count; ++i) {
    most = std::max(most, std::fabs(values[i]));
  }
  return most;
}

// The IEEE half nearest to a number from 0 on; the largest half for those beyond it.
float nearest_half(float v) {
  constexpr float kMostHalf = 65504.0F;
  constexpr float kLeastNormal = 0x1p-14F;
  const float step = std::ldexp(1.0F, v < kLeastNormal ? -24 : std::ilogb(v) - 10);
  return v >= kMostHalf ? kMostHalf : std::nearbyint(v / step) * step;
}

// The least bf16 that is not below a positive, finite number.
float bf16_not_below(float v) {
  const uint32_t bits = std::bit_cast<uint32_t>(v) + 0xffffU;
  return std::bit_cast<float>(bits & 0xffff0000U);
}

class F8Matrix final : public QuantMatrix {
 public:
  F8Matrix(int64_t rows, int64_t cols, FloatRow row) : row_(std::move(row)) {
    form_.inputs = F8Inputs::kRow;
    form_.bf16_scales = true;
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
      const float most = largest(values.data(), cols_);
      // Of zeros alone: any.
      const float scale = most > 0.0F ? bf16_not_below(most / kMaxF8E4M3) : 1.0F;
      std::fill_n(out.scales.data() + r * groups, groups, scale);
      const float* from = values.data() + part.col;
      std::transform(
          from, from + part.num_cols, out.numbers.data() + r * part.num_cols, [scale](float v) {
            return f32_to_f8_e4m3(v / scale);
          });
    }
  }

 private:
  FloatRow row_;
};

class Int8Matrix final : public QuantMatrix {
 public:
  Int8Matrix(int64_t rows, int64_t cols, int32_t group, FloatRow row) : row_(std::move(row)) {
    form_.number = QuantNumber::kQ8;
    form_.group = group;
    form_.zero_point = kZero;
    form_.half_scales = true;
    form_.wide_inputs = true;
    form_.col_unit = group;
    rows_ = rows;
    cols_ = cols;
    format_ = "int8";
  }

  void read(const QuantPart& part, QuantBuffers& out) const override {
    std::vector<float> values(static_cast<size_t>(cols_));
    std::fill(out.zeros.begin(), out.zeros.end(), uint8_t{kZero});
    float* scale = out.scales.data();
    uint8_t* number = out.numbers.data();
    for (int64_t r = 0; r < part.num_rows; ++r) {
      row_(part.row + r, values.data());
      const float* end = values.data() + part.col + part.num_cols;
      for (const float* group = end - part.num_cols; group < end; group += form_.group) {
        *scale = scale_of(group);
        for (int32_t i = 0; i < form_.group; ++i) {
          *number++ = number_of(group[i], *scale);
        }
        ++scale;
      }
    }
  }

 private:
  static constexpr int kZero = 128;
  static constexpr float kMost = 127.0F;

  [[nodiscard]] float scale_of(const float* group) const {
    if (!std::all_of(group, group + form_.group, [](float v) { return std::isfinite(v); })) {
      return std::numeric_limits<float>::quiet_NaN();
    }
    return nearest_half(largest(group, form_.group) / kMost);
  }
  static uint8_t number_of(float value, float scale) {
    if (!(scale > 0.0F)) {
      return kZero;
    }
    const float code = std::clamp(std::nearbyint(value / scale), -kMost, kMost);
    return static_cast<uint8_t>(kZero + static_cast<int>(code));
  }

  FloatRow row_;
};

}  // namespace

std::unique_ptr<QuantMatrix> rounded_matrix(
    QuantNumber number, int64_t rows, int64_t cols, int32_t group, FloatRow row) {
  if (number == QuantNumber::kF8) {
    return std::make_unique<F8Matrix>(rows, cols, std::move(row));
  }
  WR_CHECK(number == QuantNumber::kQ8 && cols % group == 0, "{} inputs", cols);
  return std::make_unique<Int8Matrix>(rows, cols, group, std::move(row));
}

}  // namespace warprow
