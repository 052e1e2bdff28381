// SPDX-License-Identifier: Apache-2.0
#include "kernels/kv_scales/kv_scales.h"

#include "tests/kernels/cpu_harness.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

// The peak divided by the scale is above a quarter of the largest number and at most half of it.
TEST(KvScaleOf, IsAPowerOfTwoWithRoomForTwice) {
  EXPECT_EQ(kv_scale_of(224.0F, 448.0F), 1.0F);
  EXPECT_EQ(kv_scale_of(std::nextafter(224.0F, 300.0F), 448.0F), 2.0F);
  EXPECT_EQ(kv_scale_of(112.0F, 448.0F), 0.5F);
  EXPECT_EQ(kv_scale_of(3.0F, 57344.0F), 0x1p-13F);
  for (float peak = 1e-20F; peak < 1e20F; peak *= 1.7F) {
    const float scale = kv_scale_of(peak, 448.0F);
    int exponent = 0;
    EXPECT_EQ(std::frexp(scale, &exponent), 0.5F) << peak;
    EXPECT_LE(peak / scale, 224.0F);
    EXPECT_GT(peak / scale, 112.0F);
  }
}

TEST(KvScaleOf, IsOneWithoutAPeak) {
  EXPECT_EQ(kv_scale_of(0.0F, 448.0F), 1.0F);
  EXPECT_EQ(kv_scale_of(std::numeric_limits<float>::infinity(), 448.0F), 1.0F);
  EXPECT_EQ(kv_scale_of(std::numeric_limits<float>::quiet_NaN(), 448.0F), 1.0F);
}

// Two heads of three elements, four tokens, of which the third has no slot.
TEST(KvScales, TakesEachHeadsPeakOverTokensWithASlot) {
  testing::CpuHarness cpu;
  std::vector<float> rows = {9, 1,    2, 3,  0,    0,   5,  //
                             9, 0,    0, -7, 1,    2,   3,  //
                             9, 1e6F, 0, 0,  1e6F, 0,   0,  //
                             9, 1,    1, 1,  2,    -30, 2};
  const std::vector<int64_t> slots = {4, 0, -1, 9};
  std::vector<float> scales(2);
  KvScalesArgs args;
  args.x = make_strided<const float>(rows.data() + 1, 4, 6, 7);
  args.slot_mapping = make_view<const int64_t>(slots.data(), 4);
  args.scales = make_view(scales.data(), 2);
  args.most = 8.0F;
  kv_scales(*cpu.stream, args);
  EXPECT_EQ(scales, (std::vector<float>{2.0F, 8.0F}));
}

}  // namespace
}  // namespace warprow
