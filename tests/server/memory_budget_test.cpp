// SPDX-License-Identifier: Apache-2.0
#include "server/http/memory_budget.h"

#include <utility>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using Use = MemoryBudget::Use;

TEST(MemoryBudget, ConnectionsAndBodiesHaveHalfEach) {
  MemoryBudget budget(100);
  EXPECT_TRUE(budget.take(Use::kConnection, 50));
  EXPECT_FALSE(budget.take(Use::kConnection, 1));
  EXPECT_TRUE(budget.take(Use::kBody, 50));
  EXPECT_FALSE(budget.take(Use::kBody, 1));
  EXPECT_EQ(budget.used_bytes(), 100);
  budget.give(Use::kConnection, 50);
  EXPECT_FALSE(budget.take(Use::kBody, 1));
  EXPECT_TRUE(budget.take(Use::kConnection, 50));
}

TEST(MemoryShare, GrowsShrinksAndEnds) {
  MemoryBudget budget(200);
  {
    MemoryShare share(budget, Use::kBody);
    EXPECT_TRUE(share.resize(60));
    EXPECT_TRUE(share.resize(100));
    EXPECT_FALSE(share.resize(101));
    EXPECT_EQ(budget.used_bytes(), 100);
    EXPECT_TRUE(share.resize(30));
    EXPECT_EQ(budget.used_bytes(), 30);
    const MemoryShare moved = std::move(share);
    EXPECT_EQ(budget.used_bytes(), 30);
  }
  EXPECT_EQ(budget.used_bytes(), 0);
}

}  // namespace
}  // namespace warprow
