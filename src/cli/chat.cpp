// SPDX-License-Identifier: Apache-2.0
#include "cli/chat_session.h"
#include "cli/command.h"
#include "cli/command_frame.h"
#include "cli/line_reader.h"
#include "cli/sampling_fields.h"
#include "cli/single_run.h"
#include "cli/update_queue.h"
#include "engine/engine.h"

#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <unistd.h>

#include <fmt/format.h>

namespace warprow {
namespace {

// Reads and answers until the user leaves.
ExitCode converse(ChatSession& session, LineReader& reader, UpdateQueue& updates) {
  for (std::string line;;) {
    switch (reader.read(line)) {
      case LineReader::Outcome::kLine:
        if (session.handle(line) == ChatSession::Next::kLeave) {
          return updates.signal() == 0 ? session.exit_code() : exit_code_of_signal(updates);
        }
        break;
      case LineReader::Outcome::kEnd:
        return session.exit_code();
      case LineReader::Outcome::kSignal:
        fmt::print(stderr, "\n");
        if (updates.signal() == SIGTERM) {
          return ExitCode::kTerminated;
        }
        updates.forget_signal();
        fmt::print(stderr, "(/exit or Ctrl-D leaves)\n");
        break;
    }
  }
}

}  // namespace

Result<ExitCode> run_chat(const Arguments& arguments) {
  CommandFrame frame("chat", "talks with a model in the terminal", "MODEL [FLAGS]");
  std::optional<std::string> system;
  frame.flags().add_text(
      {.name = "system", .value = "TEXT", .group = "Prompt", .help = "the system message"}, system);
  SamplingOptions sampling;
  add_sampling_flags(frame.flags(), sampling);
  RunOptions options;
  add_stats_flag(frame.flags(), options);
  const Result<std::optional<ExitCode>> begun = frame.begin(arguments, {.has_request_seed = true});
  if (!begun || *begun) {
    return begun.map([](const std::optional<ExitCode>& code) { return *code; });
  }

  if (Result<void> checked = check_without_model(sampling); !checked) {
    return tl::unexpected(refused_request(checked.error()));
  }
  if (sampling.n.value_or(1) > 1) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("n: {} must be 1 in a chat, which goes on from one answer", *sampling.n));
  }

  const bool on_terminal = isatty(STDIN_FILENO) == 1 && isatty(STDERR_FILENO) == 1;
  Output out(STDOUT_FILENO);
  UpdateQueue updates;
  const std::unique_ptr<Engine> engine = load_engine(frame.config());
  std::unique_ptr<LineReader> reader;
  if (on_terminal) {
    updates.watch_signals();
    fmt::print(stderr,
               "{}: /help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves\n",
               frame.config().model);
    reader = make_terminal_reader("> ");
  } else {
    reader = make_plain_reader();
  }
  ChatSession session(*engine, updates, out, sampling, system);
  const ExitCode code = converse(session, *reader, updates);
  if (options.stats) {
    session.handle("/stats");
  }
  if (Result<void> written = out.status(); !written) {
    return tl::unexpected(written.error());
  }
  return code;
}

}  // namespace warprow
