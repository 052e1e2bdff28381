// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/token_list.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string list_error(const char* text) {
  const auto ids = parse_token_list(text, 10);
  return ids ? "" : ids.error().message;
}

TEST(TokenList, ReadsEveryForm) {
  EXPECT_THAT(*parse_token_list("1 2,3\n 4", 10), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(*parse_token_list("[1, 2]", 10), ElementsAre(1, 2));
  EXPECT_THAT(*parse_token_list(R"({"token_ids":[0,9],"tokens":["a","b"]})", 10),
              ElementsAre(0, 9));
  EXPECT_THAT(*parse_token_list("", 10), IsEmpty());
}

TEST(TokenList, MistakesAreNamed) {
  EXPECT_EQ(list_error("1 x"), "token ids: 'x' is not a whole number");
  EXPECT_EQ(list_error("1.5"), "token ids: '1.5' is not a whole number");
  EXPECT_EQ(list_error("10"), "token ids: 10 is outside the vocabulary [0, 9]");
  EXPECT_EQ(list_error("-1"), "token ids: -1 is outside the vocabulary [0, 9]");
  EXPECT_EQ(list_error("99999999999"), "token ids: 99999999999 is outside the vocabulary [0, 9]");
  EXPECT_EQ(list_error("[1"), "token ids: must be a JSON list, or an object with token_ids");
  EXPECT_EQ(list_error("{\"ids\":[1]}"),
            "token ids: must be a JSON list, or an object with token_ids");
  EXPECT_EQ(list_error("[\"a\"]"), "token ids: '\"a\"' is not a whole number");
}

}  // namespace
}  // namespace warprow
