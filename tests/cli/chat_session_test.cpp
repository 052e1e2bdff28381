// SPDX-License-Identifier: Apache-2.0
#include "cli/chat/chat_session.h"

#include "tests/cli/captured_output.h"
#include "tests/cli/fake_engine.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

class ChatSessionTest : public ::testing::Test {
 protected:
  ChatSessionTest() { updates_.watch_signals(); }

  UpdateQueue updates_;
  FakeEngine engine_;
  EngineChat partner_{engine_, updates_, {}};
  CapturedOutput out_;
};

TEST_F(ChatSessionTest, KeepsTheHistory) {
  ChatSession chat(partner_, updates_, out_.output(), "be brief");
  EXPECT_EQ(chat.handle("hi"), ChatSession::Next::kGoOn);
  EXPECT_EQ(engine_.prompts.back(), "s:be brief;u:hi;");
  EXPECT_EQ(out_.text(), "<s:be brief;u:hi;>\n");
  chat.handle("/reset");
  ASSERT_EQ(chat.messages().size(), 1U);
  chat.handle("a");
  chat.handle("b");
  EXPECT_EQ(engine_.prompts.back(), "s:be brief;u:a;a:<s:be brief;u:a;>;u:b;");
  EXPECT_EQ(chat.exit_code(), ExitCode::kOk);
}

TEST_F(ChatSessionTest, OneWordWithASlashIsACommand) {
  ChatSession chat(partner_, updates_, out_.output(), std::nullopt);
  EXPECT_EQ(chat.handle("/exit"), ChatSession::Next::kLeave);
  EXPECT_EQ(chat.handle("  /help "), ChatSession::Next::kGoOn);
  EXPECT_EQ(chat.handle("/nonsense"), ChatSession::Next::kGoOn);
  EXPECT_EQ(chat.handle(""), ChatSession::Next::kGoOn);
  EXPECT_EQ(engine_.num_submitted, 0U);
  chat.handle("/etc/passwd is what?");
  chat.handle("/etc/passwd");
  EXPECT_EQ(engine_.num_submitted, 2U);
}

TEST_F(ChatSessionTest, CtrlCStopsTheAnswerAndKeepsIt) {
  ChatSession chat(partner_, updates_, out_.output(), std::nullopt);
  EXPECT_EQ(chat.handle("ctrl-c"), ChatSession::Next::kGoOn);
  EXPECT_EQ(engine_.num_aborted, 1);
  ASSERT_EQ(chat.messages().size(), 2U);
  EXPECT_EQ(chat.messages()[1].content, "par");
  EXPECT_EQ(updates_.signal(), 0);
  chat.handle("/reset");
  chat.handle("on");
  EXPECT_THAT(out_.text(), ::testing::HasSubstr("<u:on;>"));
}

TEST_F(ChatSessionTest, ARefusedOrFailedTurnLeavesTheHistoryAlone) {
  ChatSession chat(partner_, updates_, out_.output(), std::nullopt);
  chat.handle(std::string(200, 'x'));  // exceeds the context
  EXPECT_TRUE(chat.messages().empty());
  chat.handle("fail");
  EXPECT_TRUE(chat.messages().empty());
  EXPECT_EQ(chat.exit_code(), ExitCode::kRequestFailed);
}

}  // namespace
}  // namespace warprow
