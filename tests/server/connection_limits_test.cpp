// SPDX-License-Identifier: Apache-2.0
#include "server/http/connection_limits.h"

#include <optional>

#include <gtest/gtest.h>

namespace warprow {
namespace {

TEST(ConnectionLimits, BoundAllTogether) {
  ConnectionLimits limits(2, std::nullopt);
  EXPECT_TRUE(limits.enter("a", false));
  EXPECT_TRUE(limits.enter("b", false));
  EXPECT_FALSE(limits.enter("c", false));
  limits.leave("a");
  EXPECT_TRUE(limits.enter("c", false));
}

TEST(ConnectionLimits, BoundEachAddressButThisMachines) {
  ConnectionLimits limits(1000, std::nullopt);
  for (size_t i = 0; i < ConnectionLimits::kMostPerAddress; ++i) {
    EXPECT_TRUE(limits.enter("a", false));
    EXPECT_TRUE(limits.enter("127.0.0.1", true));
  }
  EXPECT_FALSE(limits.enter("a", false));
  EXPECT_TRUE(limits.enter("127.0.0.1", true));
  EXPECT_TRUE(limits.enter("b", false));
  limits.leave("a");
  EXPECT_TRUE(limits.enter("a", false));
}

TEST(ConnectionLimits, AGivenBoundHoldsForThisMachineToo) {
  ConnectionLimits limits(1000, 1);
  EXPECT_TRUE(limits.enter("127.0.0.1", true));
  EXPECT_FALSE(limits.enter("127.0.0.1", true));
  EXPECT_TRUE(limits.enter("127.0.0.2", true));
}

}  // namespace
}  // namespace warprow
