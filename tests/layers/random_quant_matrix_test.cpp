// SPDX-License-Identifier: Apache-2.0
#include "layers/random_quant_matrix.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

QuantForm form_of(QuantNumber number, int32_t group, F8Inputs inputs = F8Inputs::kNone) {
  QuantForm form;
  form.number = number;
  form.group = group;
  form.inputs = inputs;
  return form;
}

QuantBuffers read(const RandomQuantMatrix& matrix, const QuantPart& part) {
  QuantBuffers out;
  out.resize(matrix.form(), part);
  matrix.read(part, out);
  return out;
}

TEST(RandomNumber, IsTheNearestOne) {
  EXPECT_EQ(random_number(PackedKind::kF8, 0), 0x00);
  EXPECT_EQ(random_number(PackedKind::kF8, 1), 0x38);
  EXPECT_EQ(random_number(PackedKind::kF8, -17), 0xd8) << "a tie between 16 and 18";
  EXPECT_EQ(random_number(PackedKind::kF8, 510), 0x7e) << "448";
  EXPECT_EQ(random_number(PackedKind::kQ8, 0), 128);
  EXPECT_EQ(random_number(PackedKind::kQ8, 5), 129);
  EXPECT_EQ(random_number(PackedKind::kQ8, -6), 126);
  EXPECT_EQ(random_number(PackedKind::kQ8, 510), 255);
  EXPECT_EQ(random_number(PackedKind::kQ8, -510), 0);
  EXPECT_EQ(random_number(PackedKind::kQ4, 31), 8);
  EXPECT_EQ(random_number(PackedKind::kQ4, -32), 7);
  EXPECT_EQ(random_number(PackedKind::kQ4, 510), 15);
  EXPECT_EQ(random_number(PackedKind::kQ4, -510), 0);
}

TEST(RandomQuantMatrix, WeightsHaveTheDeviationThatIsWanted) {
  for (const QuantNumber number : {QuantNumber::kF8, QuantNumber::kQ8, QuantNumber::kQ4}) {
    const RandomQuantMatrix matrix(form_of(number, 128), 7, 0.05F, 64, 256);
    const QuantPart whole{0, 64, 0, 256};
    std::vector<float> values(64 * 256);
    dequantise(matrix.form(), whole, read(matrix, whole), values.data());
    double sum = 0.0;
    double squares = 0.0;
    for (const float v : values) {
      sum += v;
      squares += double{v} * v;
    }
    const auto count = static_cast<double>(values.size());
    EXPECT_NEAR(std::sqrt(squares / count), 0.05, 0.002) << matrix.format();
    EXPECT_NEAR(sum / count, 0.0, 0.002) << matrix.format();
  }
}

TEST(RandomQuantMatrix, ScalesAreThoseOfTheirRowsBlocksOrGroups) {
  const QuantPart whole{0, 256, 0, 256};
  const auto scales = [&](const QuantForm& form) {
    const RandomQuantMatrix matrix(form, 7, 0.05F, 256, 256);
    return read(matrix, whole).scales;
  };
  const std::vector<float> of_rows = scales(form_of(QuantNumber::kF8, 128, F8Inputs::kRow));
  EXPECT_EQ(of_rows[0], of_rows[1]);
  EXPECT_GT(std::set(of_rows.begin(), of_rows.end()).size(), 80U);  // of 89 bf16 in their range
  EXPECT_TRUE(std::ranges::all_of(
      of_rows, [](float v) { return (std::bit_cast<uint32_t>(v) & 0xffffU) == 0; }));
  const std::vector<float> of_blocks = scales(form_of(QuantNumber::kF8, 128, F8Inputs::kGroup));
  EXPECT_EQ(of_blocks[0], of_blocks[2 * 127]);
  EXPECT_EQ(std::set(of_blocks.begin(), of_blocks.end()).size(), 4U);
  const std::vector<float> of_groups = scales(form_of(QuantNumber::kQ4, 32));
  EXPECT_NE(of_groups[0], of_groups[1]);
  const auto [least, most] = std::minmax_element(of_rows.begin(), of_rows.end());
  EXPECT_GE(*least, 0.74F * 0.05F / 147.8F);
  EXPECT_LE(*most, 1.26F * 0.05F / 147.8F);
}

TEST(RandomQuantMatrix, APartHasItsNumbers) {
  for (const QuantNumber number : {QuantNumber::kF8, QuantNumber::kQ4}) {
    const RandomQuantMatrix matrix(form_of(number, 32), 9, 1.0F, 40, 128);
    const QuantBuffers all = read(matrix, {0, 40, 0, 128});
    const QuantBuffers some = read(matrix, {17, 5, 64, 64});
    for (size_t r = 0; r < 5; ++r) {
      for (size_t c = 0; c < 64; ++c) {
        EXPECT_EQ(some.numbers[r * 64 + c], all.numbers[(17 + r) * 128 + 64 + c]);
        EXPECT_EQ(some.scales[r * 2 + c / 32], all.scales[(17 + r) * 4 + 2 + c / 32]);
      }
    }
  }
}

}  // namespace
}  // namespace warprow
