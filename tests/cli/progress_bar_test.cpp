// SPDX-License-Identifier: Apache-2.0
#include "cli/progress_bar.h"

#include <gtest/gtest.h>

namespace warprow {
namespace {

TEST(ProgressText, FillsWithTheWork) {
  EXPECT_EQ(progress_text(0, 10, 0), "[                              ] 0/10, 0 tokens/s");
  EXPECT_EQ(progress_text(5, 10, 99.6), "[###############               ] 5/10, 100 tokens/s");
  EXPECT_EQ(progress_text(10, 10, 1), "[##############################] 10/10, 1 tokens/s");
  EXPECT_EQ(progress_text(3, 0, 2), "3 done, 2 tokens/s");
}

}  // namespace
}  // namespace warprow
