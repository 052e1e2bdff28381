// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_run.h"

#include <gtest/gtest.h>

namespace warprow {
namespace {

TEST(Percentile, IsLinearBetweenNeighbours) {
  EXPECT_DOUBLE_EQ(percentile({3.0, 1.0, 2.0}, 50), 2.0);
  EXPECT_DOUBLE_EQ(percentile({3.0, 1.0, 2.0}, 25), 1.5);
  EXPECT_DOUBLE_EQ(percentile({3.0, 1.0, 2.0}, 0), 1.0);
  EXPECT_DOUBLE_EQ(percentile({3.0, 1.0, 2.0}, 100), 3.0);
  EXPECT_DOUBLE_EQ(percentile({7.0}, 99), 7.0);
}

}  // namespace
}  // namespace warprow
