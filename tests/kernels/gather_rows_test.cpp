// SPDX-License-Identifier: Apache-2.0
#include "kernels/gather/gather_rows.h"

#include "tests/kernels/cpu_harness.h"

#include <gtest/gtest.h>

namespace warprow {
namespace {

TEST(GatherRows, CopiesRowsAndClearsPadding) {
  testing::CpuHarness cpu;
  const std::vector<float> x{0, 1, 9, 2, 3, 9, 4, 5, 9};  // rows of 2 with stride 3
  const std::vector<int32_t> index{2, -1, 0, 2};
  std::vector<float> out(8, -7.0F);
  gather_rows(
      *cpu.stream,
      {make_strided(x.data(), 3, 2, 3), make_view(index.data(), 4), make_view(out.data(), 4, 2)});
  EXPECT_EQ(out, (std::vector<float>{4, 5, 0, 0, 0, 1, 4, 5}));
}

TEST(GatherRows, WithoutAnIndexCopiesAll) {
  testing::CpuHarness cpu;
  const std::vector<float> x{0, 1, 9, 2, 3, 9};
  std::vector<float> out(4, -7.0F);
  gather_rows(*cpu.stream, {make_strided(x.data(), 2, 2, 3), {}, make_view(out.data(), 2, 2)});
  EXPECT_EQ(out, (std::vector<float>{0, 1, 2, 3}));
}

}  // namespace
}  // namespace warprow
