// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "cli/chat/chat_partner.h"
#include "cli/exit_code.h"
#include "cli/output.h"
#include "cli/update_queue.h"
#include "engine/request.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace warprow {

// A conversation: keeps the messages, streams each answer, runs /commands. Each turn sends the whole history to the
// engine or server, whose prefix cache makes the repetition cheap. Answers go to `out`, everything else to stderr.
//
// Owns: the messages. Thread: one.
// Invariant: messages_ alternates user and assistant after the optional system message. A failed turn is removed.
class ChatSession {
 public:
  ChatSession(ChatPartner& partner,
              UpdateQueue& updates,
              Output& out,
              std::optional<std::string> system);

  enum class Next { kGoOn, kLeave };
  // Handles a line of the user: a message, or a /command if it is one word that begins with a slash. kLeave on /exit,
  // on a closed output and on SIGTERM. Ctrl-C only stops the answer.
  Next handle(const std::string& line);

  [[nodiscard]] const std::vector<ChatMessage>& messages() const { return messages_; }
  // kOk, or kRequestFailed after a turn has failed.
  [[nodiscard]] ExitCode exit_code() const { return exit_code_; }

 private:
  Next obey(std::string_view command);
  Next answer(const std::string& text);
  void reset();

  ChatPartner& partner_;
  UpdateQueue& updates_;
  Output& out_;
  std::optional<std::string> system_;
  std::vector<ChatMessage> messages_;
  std::string last_speed_;  // of the last answer, for /stats
  ExitCode exit_code_ = ExitCode::kOk;
};

}  // namespace warprow
