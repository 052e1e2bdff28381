// SPDX-License-Identifier: Apache-2.0
#include "engine/prompt_length.h"

#include <optional>
#include <string>

#include <gtest/gtest.h>

namespace warprow {
namespace {

const PromptLength kLength(10);

std::string message(const std::optional<PromptExcess>& excess) {
  return excess ? excess->message : "";
}

TEST(PromptLength, APromptLeavesRoomForOneToken) {
  EXPECT_FALSE(kLength.judge(9));
  EXPECT_EQ(message(kLength.judge(10)),
            "prompt: 10 tokens and at least one more for the answer exceed the maximum context "
            "length of 10 tokens (max_model_len)");
  EXPECT_EQ(kLength.left(9), 1);
  EXPECT_EQ(kLength.left(12), 0);
}

TEST(PromptLength, AnAnswerFitsWhole) {
  EXPECT_FALSE(kLength.judge(9, std::nullopt));
  EXPECT_FALSE(kLength.judge(4, 6));
  const std::optional<PromptExcess> excess = kLength.judge(4, 7);
  EXPECT_EQ(message(excess),
            "prompt: 4 tokens and max_tokens 7 are too many: this model's maximum context length "
            "is 10 tokens (max_model_len)");
  EXPECT_EQ(excess->num_toks, 4);
  EXPECT_EQ(excess->limit, 10);
  EXPECT_FALSE(kLength.judge(0, 1'000'000)) << "the engine cuts max_tokens to the limit";
}

TEST(PromptLength, ATextIsTooLongByWhatItHasAtLeast) {
  EXPECT_FALSE(kLength.judge_text(500, 10, "prompt"));
  EXPECT_EQ(message(kLength.judge_text(500, 11, "messages")),
            "messages: 500 bytes have 11 tokens or more, which are too many: this model's maximum "
            "context length is 10 tokens (max_model_len)");
}

TEST(PromptLength, Truncation) {
  EXPECT_EQ(kLength.truncated(3, 5), 3);
  EXPECT_EQ(kLength.truncated(-1, 4), 6);
  EXPECT_EQ(kLength.truncated(-1, std::nullopt), 9);
  EXPECT_EQ(kLength.truncated(-1, 40), 1);
  EXPECT_FALSE(kLength.truncated(11, 1));
}

TEST(PromptLength, APromptWithoutAnAnswerMayHaveTheWholeLength) {
  EXPECT_FALSE(kLength.judge_alone(10));
  EXPECT_EQ(message(kLength.judge_alone(11)),
            "prompt: 11 tokens are too many: this model's maximum context length is 10 tokens "
            "(max_model_len)");
  EXPECT_EQ(kLength.truncated_alone(-1), 10);
  EXPECT_EQ(kLength.truncated_alone(4), 4);
  EXPECT_FALSE(kLength.truncated_alone(11));
}

}  // namespace
}  // namespace warprow
