// SPDX-License-Identifier: Apache-2.0
#include "base/float8.h"

#include <cmath>
#include <cstdint>

#include <gtest/gtest.h>

namespace warprow {
namespace {

TEST(Float8, EveryNumberSurvives) {
  for (int bits = 0; bits < 256; ++bits) {
    const auto number = static_cast<uint8_t>(bits);
    const float value = f8_e4m3_to_f32(number);
    if ((bits & 127) == 127) {
      EXPECT_TRUE(std::isnan(value));
      continue;
    }
    EXPECT_EQ(f32_to_f8_e4m3(value), number);
  }
  EXPECT_EQ(f8_e4m3_to_f32(0x38), 1.0F);
  EXPECT_EQ(f8_e4m3_to_f32(0xfe), -448.0F);
  EXPECT_EQ(f8_e4m3_to_f32(0x01), 0x1p-9F);
}

TEST(Float8, RoundsToNearestTiesToEven) {
  for (int bits = 0; bits < 126; ++bits) {
    const auto lower = static_cast<uint8_t>(bits);
    const auto upper = static_cast<uint8_t>(bits + 1);
    const float middle = (f8_e4m3_to_f32(lower) + f8_e4m3_to_f32(upper)) / 2;
    EXPECT_EQ(f32_to_f8_e4m3(middle), bits % 2 == 0 ? lower : upper) << bits;
    EXPECT_EQ(f32_to_f8_e4m3(std::nextafter(middle, 0.0F)), lower) << bits;
    EXPECT_EQ(f32_to_f8_e4m3(std::nextafter(middle, 1e9F)), upper) << bits;
  }
  EXPECT_EQ(f32_to_f8_e4m3(1e6F), 0x7e);
  EXPECT_EQ(f32_to_f8_e4m3(-1e6F), 0xfe);
}

}  // namespace
}  // namespace warprow
