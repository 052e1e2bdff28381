// SPDX-License-Identifier: Apache-2.0
#include "server/http_message.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(HttpMessage, ValuesOfAQuery) {
  EXPECT_THAT(query_values("tags=weights&x=1&tags=kv%5Fcache&tags", "tags"),
              ElementsAre("weights", "kv_cache", ""));
  EXPECT_THAT(query_values("tag=1&atags=2", "tags"), IsEmpty());
  EXPECT_EQ(query_value("a=1&b=two+%20words&b=3", "b"), "two  words");
  EXPECT_EQ(query_value("a=1", "b"), std::nullopt);
}

TEST(HttpMessage, PlainIds) {
  EXPECT_TRUE(is_plain_id(std::string(128, '~')));
  for (const std::string& bad : {std::string(),
                                 std::string(129, 'a'),
                                 std::string("a b"),
                                 std::string("a\r\nb"),
                                 std::string("\x7f")}) {
    EXPECT_FALSE(is_plain_id(bad)) << bad;
  }
}

}  // namespace
}  // namespace warprow
