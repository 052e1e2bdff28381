// SPDX-License-Identifier: Apache-2.0
#include "layers/random_quant_matrix.h"

#include "base/math.h"

#include <algorithm>
#include <array>

namespace warprow {
namespace {

PackedKind kind_of(QuantNumber number) {
  return number == QuantNumber::kF8   ? PackedKind::kF8
         : number == QuantNumber::kQ4 ? PackedKind::kQ4
                                      : PackedKind::kQ8;
}

// Numbers by their sums.
using Numbers = std::array<uint8_t, 2 * kMostRandomSum + 1>;
size_t index_of_sum(int32_t sum) {
  const int32_t index = sum + kMostRandomSum;
  return static_cast<size_t>(index);
}
Numbers numbers_of(PackedKind kind) {
  Numbers numbers;
  for (int32_t sum = -kMostRandomSum; sum <= kMostRandomSum; ++sum) {
    numbers[index_of_sum(sum)] = random_number(kind, sum);
  }
  return numbers;
}

}  // namespace

RandomQuantMatrix::RandomQuantMatrix(
    const QuantForm& form, uint64_t seed, float deviation, int64_t rows, int64_t cols) {
  const bool f8 = form.number == QuantNumber::kF8;
  const bool blocks = form.inputs == F8Inputs::kGroup;
  random_.kind = kind_of(form.number);
  random_.seed = seed;
  random_.scale = deviation / random_deviation(random_.kind);
  random_.rows_each = blocks ? 128 : 1;
  random_.cols_each = f8 && !blocks ? std::max<int64_t>(1, cols) : form.group;
  form_ = form;
  form_.zero_point = random_zero_point(random_.kind);
  form_.half_scales = !f8;
  form_.bf16_scales = true;
  form_.col_unit = f8 && !blocks ? 1 : form.group;
  rows_ = rows;
  cols_ = cols;
  format_ = f8 ? "fp8" : form.number == QuantNumber::kQ4 ? "int4" : "int8";
}

void RandomQuantMatrix::read(const QuantPart& part, QuantBuffers& out) const {
  static const Numbers kF8 = numbers_of(PackedKind::kF8);
  static const Numbers kQ8 = numbers_of(PackedKind::kQ8);
  static const Numbers kQ4 = numbers_of(PackedKind::kQ4);
  const Numbers& numbers = random_.kind == PackedKind::kF8   ? kF8
                           : random_.kind == PackedKind::kQ8 ? kQ8
                                                             : kQ4;
  const int64_t groups = ceil_div<int64_t>(part.num_cols, form_.group);
  std::fill(out.zeros.begin(), out.zeros.end(), static_cast<uint8_t>(form_.zero_point));
  uint8_t* number = out.numbers.data();
  float* scale = out.scales.data();
  int32_t sums[4] = {};
  for (int64_t row = part.row; row < part.row + part.num_rows; ++row) {
    for (int64_t g = 0; g < groups; ++g) {
      *scale++ = random_scale(random_, row, part.col + g * form_.group);
    }
    for (int64_t col = part.col; col < part.col + part.num_cols; ++col) {
      if (col == part.col || col % 4 == 0) {
        random_sums(random_.seed, row, col / 4, sums);
      }
      *number++ = numbers[index_of_sum(sums[col % 4])];
    }
  }
}

}  // namespace warprow
