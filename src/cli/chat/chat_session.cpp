// SPDX-License-Identifier: Apache-2.0
#include "cli/chat/chat_session.h"

#include "cli/note.h"
#include "cli/run_summary.h"

#include <chrono>
#include <csignal>
#include <utility>

namespace warprow {
namespace {

constexpr const char* kHelp =
    "/reset   forget the conversation\n"
    "/stats   speed of the last answer and the engine's counters\n"
    "/exit    leave (also Ctrl-D)\n"
    "Ctrl-C   stop an answer\n";

}  // namespace

ChatSession::ChatSession(ChatPartner& partner,
                         UpdateQueue& updates,
                         Output& out,
                         std::optional<std::string> system)
    : partner_(partner), updates_(updates), out_(out), system_(std::move(system)) {
  reset();
}

void ChatSession::reset() {
  messages_.clear();
  if (system_) {
    messages_.push_back({"system", *system_});
  }
}

ChatSession::Next ChatSession::handle(const std::string& line) {
  const size_t begin = line.find_first_not_of(" \t\r");
  if (begin == std::string::npos) {
    return Next::kGoOn;
  }
  const std::string word = line.substr(begin, line.find_last_not_of(" \t\r") + 1 - begin);
  if (word.front() == '/' && word.find_first_of(" \t/", 1) == std::string::npos) {
    return obey(word);
  }
  return answer(line);
}

ChatSession::Next ChatSession::obey(std::string_view command) {
  if (command == "/exit" || command == "/quit" || command == "/bye") {
    return Next::kLeave;
  }
  if (command == "/reset" || command == "/clear") {
    reset();
    note("The conversation starts afresh.\n");
  } else if (command == "/stats") {
    note("{}{}\n", last_speed_, partner_.counters());
  } else if (command == "/help") {
    note("{}", kHelp);
  } else {
    note("unknown command {}; /help lists them\n", command);
  }
  return Next::kGoOn;
}

ChatSession::Next ChatSession::answer(const std::string& text) {
  messages_.push_back({"user", text});
  const auto start = std::chrono::steady_clock::now();
  ChatReply reply = partner_.answer(messages_, out_);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  out_.end_line();

  const bool leave = updates_.signal() == SIGTERM || out_.closed();
  if (!reply.error.empty()) {
    messages_.pop_back();
    exit_code_ = ExitCode::kRequestFailed;
    if (reply.is_refused) {
      note("warprow: {}; /reset starts afresh\n", reply.error);
    } else {
      note("warprow: the request failed: {}\n", reply.error);
    }
  } else {
    last_speed_ = speed_text(reply.num_tokens, took.count()) + "\n";
    // The user has seen an interrupted answer, so it belongs to the conversation.
    messages_.push_back({"assistant", std::move(reply.text)});
  }
  if (reply.is_cut) {
    note("(cut at {} tokens by --max-tokens or the end of the context)\n", reply.num_tokens);
  }
  if (!leave && updates_.signal() != 0) {
    note("(stopped)\n");
    updates_.forget_signal();
  }
  return leave ? Next::kLeave : Next::kGoOn;
}

}  // namespace warprow
