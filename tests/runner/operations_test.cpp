// SPDX-License-Identifier: Apache-2.0
#include "runner/operations.h"

#include "base/check.h"

#include <gtest/gtest.h>

namespace warprow {
namespace {

TEST(Operations, ANameAnswersWithItsArgument) {
  Operations operations;
  operations.add("greet", [](const std::string& whom) { return "hello " + whom; });
  operations.add("count", [](const std::string&) { return std::string("3"); });
  EXPECT_EQ(operations.call("greet", "rank 0"), "hello rank 0");
  EXPECT_EQ(operations.call("count", ""), "3");
  EXPECT_EQ(operations.call("gree", ""), std::nullopt);
}

TEST(Operations, ANameAddedTwiceIsOurMistake) {
  const ScopedCheckThrows throws;
  Operations operations;
  const auto nothing = [](const std::string&) { return std::string(); };
  operations.add("sleep", nothing);
  EXPECT_THROW(operations.add("sleep", nothing), CheckFailure);
}

}  // namespace
}  // namespace warprow
