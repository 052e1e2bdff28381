// SPDX-License-Identifier: Apache-2.0
#include "layers/rounded_matrix.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

constexpr int64_t kCols = 96;

// Row r has (r + 1) * (c - 40) at column c, but for what a test changes.
struct Matrix {
  std::vector<float> values;

  explicit Matrix(int64_t rows) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < kCols; ++c) {
        values.push_back(static_cast<float>((r + 1) * (c - 40)));
      }
    }
  }
  [[nodiscard]] QuantBuffers read(const QuantPart& part) const {
    const auto rows = static_cast<int64_t>(values.size()) / kCols;
    const auto matrix =
        rounded_matrix(QuantNumber::kQ8, rows, kCols, 32, [&](int64_t r, float* out) {
          std::copy_n(values.begin() + r * kCols, kCols, out);
        });
    QuantBuffers buffers;
    buffers.resize(matrix->form(), part);
    matrix->read(part, buffers);
    return buffers;
  }
};

TEST(RoundedMatrix, Int8HasTheLargestMagnitudeOfAGroupAt127) {
  const QuantBuffers got = Matrix(2).read({1, 1, 0, kCols});
  ASSERT_EQ(got.scales.size(), 3U);
  // 2 * 40, 2 * 23 and 2 * 55 over 127, with the eleven bits of a half.
  EXPECT_EQ(got.scales[0], 0x1.428p-1F);
  EXPECT_EQ(got.scales[1], 0x1.73p-2F);
  EXPECT_EQ(got.scales[2], 0x1.bb8p-1F);
  for (int64_t c = 0; c < kCols; ++c) {
    const auto at = static_cast<size_t>(c);
    const float scale = got.scales[at / 32];
    const int code = int{got.numbers[at]} - 128;
    EXPECT_LE(std::abs(code), 127);
    EXPECT_EQ(got.zeros[at / 32], 128);
    EXPECT_NEAR(static_cast<float>(code) * scale, static_cast<float>(2 * (c - 40)), 0.51F * scale);
  }
  EXPECT_EQ(got.numbers[0], 128 - 127);
  EXPECT_EQ(got.numbers[40], 128);
  EXPECT_EQ(got.numbers[95], 128 + 127);
}

TEST(RoundedMatrix, E4m3HasABf16NotBelowTheLargestMagnitudeOver448) {
  constexpr float kMost[] = {448.0F, 449.0F, 3.0F, 0.0F};
  const auto matrix = rounded_matrix(QuantNumber::kF8, 4, 128, 128, [&](int64_t r, float* out) {
    for (int c = 0; c < 128; ++c) {
      out[c] = kMost[r] * static_cast<float>(c - 127) / 127.0F;
    }
  });
  EXPECT_TRUE(matrix->form().bf16_scales);
  QuantBuffers got;
  got.resize(matrix->form(), {0, 4, 0, 128});
  matrix->read({0, 4, 0, 128}, got);
  EXPECT_EQ(got.scales, (std::vector<float>{1.0F, 1.0078125F, 0x1.b8p-8F, 1.0F}));
  EXPECT_EQ(got.numbers[0], 0xfe);    // -448
  EXPECT_EQ(got.numbers[128], 0xfe);  // -449 / 1.0078125 = -445.5
  EXPECT_EQ(got.numbers[127], 0);
  EXPECT_EQ(got.numbers[3 * 128] & 0x7f, 0);
}

TEST(RoundedMatrix, AWideGroupHasOneScale) {
  const auto matrix = rounded_matrix(QuantNumber::kQ8, 1, 256, 128, [](int64_t, float* out) {
    for (int c = 0; c < 256; ++c) {
      out[c] = static_cast<float>(c < 128 ? c : 500 - c);
    }
  });
  EXPECT_EQ(matrix->form().group, 128);
  QuantBuffers got;
  got.resize(matrix->form(), {0, 1, 0, 256});
  matrix->read({0, 1, 0, 256}, got);
  ASSERT_EQ(got.scales.size(), 2U);
  EXPECT_EQ(got.scales[0], 1.0F);
  EXPECT_NEAR(got.scales[1], 372.0 / 127, 1e-2);
  EXPECT_EQ(got.numbers[5], 128 + 5);
  EXPECT_EQ(got.numbers[128], 128 + 127);
}

TEST(RoundedMatrix, PartsAreThoseOfTheWhole) {
  const Matrix matrix(3);
  const QuantBuffers whole = matrix.read({0, 3, 0, kCols});
  const QuantBuffers part = matrix.read({1, 2, 32, 64});
  for (size_t r = 0; r < 2; ++r) {
    for (size_t c = 0; c < 64; ++c) {
      EXPECT_EQ(part.numbers[r * 64 + c], whole.numbers[(r + 1) * kCols + 32 + c]);
    }
    EXPECT_EQ(part.scales[r * 2], whole.scales[(r + 1) * 3 + 1]);
    EXPECT_EQ(part.scales[r * 2 + 1], whole.scales[(r + 1) * 3 + 2]);
  }
}

TEST(RoundedMatrix, GroupsOfZerosOfTinyAndOfHugeNumbers) {
  Matrix matrix(1);
  std::fill_n(matrix.values.begin(), 32, 0.0F);
  std::fill_n(matrix.values.begin() + 32, 32, 1e-30F);
  std::fill_n(matrix.values.begin() + 64, 32, -1e30F);
  const QuantBuffers got = matrix.read({0, 1, 0, kCols});
  EXPECT_EQ(got.scales[0], 0.0F);
  EXPECT_EQ(got.scales[1], 0.0F);
  EXPECT_EQ(got.scales[2], 65504.0F) << "the largest half";
  EXPECT_EQ(got.numbers[0], 128);
  EXPECT_EQ(got.numbers[32], 128);
  EXPECT_EQ(got.numbers[64], 128 - 127);
}

// A product with such a group is NaN, as it is with the number itself.
TEST(RoundedMatrix, AGroupWithANumberThatIsNotFiniteIsNaN) {
  for (const float wrong :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Matrix matrix(1);
    matrix.values[33] = wrong;
    const QuantBuffers got = matrix.read({0, 1, 0, kCols});
    EXPECT_FALSE(std::isnan(got.scales[0]));
    EXPECT_TRUE(std::isnan(got.scales[1]));
    EXPECT_FALSE(std::isnan(got.scales[2]));
  }
}

}  // namespace
}  // namespace warprow
