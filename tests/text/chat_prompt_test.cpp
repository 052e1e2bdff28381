// SPDX-License-Identifier: Apache-2.0
#include "text/chat_prompt.h"

#include <string>

#include <gtest/gtest.h>

namespace warprow {
namespace {

Thinking behind(const std::string& prompt) { return thinking_behind({}, prompt); }

TEST(ThinkingBehind, APromptSaysHowTheAnswerBegins) {
  EXPECT_EQ(behind("user: x assistant:"), Thinking::kMaybe);
  EXPECT_EQ(behind("user: x assistant: <think>"), Thinking::kOpen);
  EXPECT_EQ(behind("user: x assistant: <think>\n"), Thinking::kOpen);
  EXPECT_EQ(behind("user: x assistant: <think>\n\n</think>\n\n"), Thinking::kNone);
  EXPECT_EQ(behind("user: what is <think>? assistant:"), Thinking::kMaybe);
  EXPECT_EQ(behind("user: what is </think>? assistant: <think>"), Thinking::kOpen);
}

TEST(ThinkingBehind, AMessageThatGoesOnMayHaveBegunToThink) {
  const auto going_on = [](const std::string& content) {
    ChatRequest chat;
    chat.continue_final_message = true;
    chat.messages.push_back({{"role", "user"}, {"content", "what is <think>?"}});
    chat.messages.push_back({{"role", "assistant"}, {"content", content}});
    return thinking_behind(chat, "what is <think>?" + content);
  };
  EXPECT_EQ(going_on("<think>"), Thinking::kOpen);
  EXPECT_EQ(going_on("<think>Well, "), Thinking::kOpen);
  EXPECT_EQ(going_on("<think>Well</think>Yes"), Thinking::kNone);
  EXPECT_EQ(going_on("Yes"), Thinking::kNone) << "the answer's beginning is already past";
}

}  // namespace
}  // namespace warprow
