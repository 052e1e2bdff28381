// SPDX-License-Identifier: Apache-2.0
#include "cli/chat_session.h"

#include "cli/run_summary.h"
#include "cli/single_run.h"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr const char* kHelp =
    "/reset   forget the conversation\n"
    "/stats   speed of the last answer and the engine's counters\n"
    "/exit    leave (also Ctrl-D)\n"
    "Ctrl-C   stop an answer\n";

}  // namespace

ChatSession::ChatSession(Engine& engine,
                         UpdateQueue& updates,
                         Output& out,
                         SamplingOptions sampling,
                         std::optional<std::string> system)
    : engine_(engine),
      updates_(updates),
      out_(out),
      sampling_(std::move(sampling)),
      system_(std::move(system)) {
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
    fmt::print(stderr, "The conversation starts afresh.\n");
  } else if (command == "/stats") {
    fmt::print(stderr, "{}{}\n", last_speed_, stats_text(engine_.stats()));
  } else if (command == "/help") {
    fmt::print(stderr, "{}", kHelp);
  } else {
    fmt::print(stderr, "unknown command {}; /help lists them\n", command);
  }
  return Next::kGoOn;
}

ChatSession::Next ChatSession::answer(const std::string& text) {
  GenerationRequest request;
  messages_.push_back({"user", text});
  request.prompt = messages_;
  request.sampling = sampling_;
  Result<ValidRequest> valid = engine_.validate(request);
  if (!valid) {
    messages_.pop_back();
    exit_code_ = ExitCode::kRequestFailed;
    fmt::print(stderr, "warprow: {}; /reset starts afresh\n", valid.error().message);
    return Next::kGoOn;
  }
  const auto start = std::chrono::steady_clock::now();
  Answer reply = stream_answers(engine_, updates_, *valid, &out_).front();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  out_.end_line();
  last_speed_ = speed_text(reply.last.num_output_tokens, took.count()) + "\n";

  const bool leave = updates_.signal() == SIGTERM || out_.closed();
  if (reply.last.finish_reason == FinishReason::kError) {
    messages_.pop_back();
    exit_code_ = ExitCode::kRequestFailed;
    fmt::print(stderr, "warprow: the request failed: {}\n", reply.last.error);
  } else {
    // An answer that was stopped half way is what the user saw, so it belongs to the conversation.
    messages_.push_back({"assistant", std::move(reply.text)});
  }
  if (reply.last.finish_reason == FinishReason::kLength) {
    fmt::print(stderr,
               "(cut at {} tokens by --max-tokens or the end of the context)\n",
               reply.last.num_output_tokens);
  }
  if (!leave && updates_.signal() != 0) {
    fmt::print(stderr, "(stopped)\n");
    updates_.forget_signal();
  }
  return leave ? Next::kLeave : Next::kGoOn;
}

}  // namespace warprow
