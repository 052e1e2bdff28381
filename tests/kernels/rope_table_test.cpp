// SPDX-License-Identifier: Apache-2.0
#include "kernels/rope/rope_table.h"

#include "tests/kernels/cpu_harness.h"

#include <cmath>

#include <gtest/gtest.h>

namespace warprow {
namespace {

TEST(RopeTable, AngleIsAFloatProduct) {
  testing::CpuHarness cpu;
  const std::vector<int32_t> positions{0, 1, 4095, 131071};
  std::vector<float> inv_freq(32);
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    inv_freq[i] = 1.0F / std::pow(10000.0F, static_cast<float>(i) / 32.0F);
  }
  std::vector<float> cos(4 * 32);
  std::vector<float> sin(4 * 32);
  rope_table(*cpu.stream,
             {make_view(positions.data(), 4),
              make_view(inv_freq.data(), 32),
              make_view(cos.data(), 4, 32),
              make_view(sin.data(), 4, 32),
              2.0F});
  EXPECT_EQ(cos[0], 2.0F);
  EXPECT_EQ(sin[0], 0.0F);
  for (size_t t = 0; t < 4; ++t) {
    for (size_t i = 0; i < 32; ++i) {
      const float angle = static_cast<float>(positions[t]) * inv_freq[i];
      EXPECT_EQ(cos[t * 32 + i], 2.0F * static_cast<float>(std::cos(static_cast<double>(angle))));
      EXPECT_EQ(sin[t * 32 + i], 2.0F * static_cast<float>(std::sin(static_cast<double>(angle))));
    }
  }
}

}  // namespace
}  // namespace warprow
