// SPDX-License-Identifier: Apache-2.0
#include "kernels/add/add_rows.h"

#include "tests/kernels/cpu_harness.h"

#include <gtest/gtest.h>

namespace warprow {
namespace {

TEST(AddRows, AddsScaledRowsAndLeavesTheirPads) {
  testing::CpuHarness cpu;
  const std::vector<float> x{1, 2, 9, 3, 4, 9};  // rows of 2 with stride 3
  std::vector<float> y{10, 20, -7, -7, 30, 40, -7, -7};
  const View<const float, 2> from = make_strided(x.data(), 2, 2, 3);
  const View<float, 2> to = make_strided(y.data(), 2, 2, 4);
  add_rows(*cpu.stream, {from, to});
  EXPECT_EQ(y, (std::vector<float>{11, 22, -7, -7, 33, 44, -7, -7}));
  add_rows(*cpu.stream, {from, to, 0.5F});
  EXPECT_EQ(y, (std::vector<float>{11.5, 23, -7, -7, 34.5, 46, -7, -7}));
}

// The product is rounded before the sum (no fused multiply-add): (1 + 2^-23)^2 loses its last bit, 2^-46.
TEST(AddRows, RoundsTwice) {
  testing::CpuHarness cpu;
  const float near_one = 1.0F + 0x1p-23F;
  const std::vector<float> x{near_one};
  std::vector<float> y{-(1.0F + 0x1p-22F)};
  add_rows(*cpu.stream,
           {make_view<const float>(x.data(), 1, 1), make_view(y.data(), 1, 1), near_one});
  EXPECT_EQ(y[0], 0.0F);
}

}  // namespace
}  // namespace warprow
