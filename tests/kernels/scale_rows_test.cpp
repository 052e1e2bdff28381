// SPDX-License-Identifier: Apache-2.0
#include "kernels/scale/scale_rows.h"

#include "tests/kernels/cpu_harness.h"

#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

TEST(ScaleRows, ScalesRowsAndLeavesTheirPads) {
  testing::CpuHarness cpu;
  std::vector<float> x{1, 2, 9, 3, 4, 9};  // rows of 2 in a stride of 3
  scale_rows(*cpu.stream, {make_strided(x.data(), 2, 2, 3), 0.5F});
  EXPECT_EQ(x, (std::vector<float>{0.5, 1, 9, 1.5, 2, 9}));
}

}  // namespace
}  // namespace warprow
