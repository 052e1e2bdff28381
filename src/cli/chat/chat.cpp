// SPDX-License-Identifier: Apache-2.0
#include "cli/chat/chat_session.h"
#include "cli/chat/line_reader.h"
#include "cli/commands/command.h"
#include "cli/commands/command_frame.h"
#include "cli/commands/single_run.h"
#include "cli/flags/sampling_fields.h"
#include "cli/flags/server_flags.h"
#include "cli/note.h"
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

constexpr std::chrono::minutes kChatSilence{10};

// Reads lines and answers them until the user leaves.
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
        note("\n");
        if (updates.signal() == SIGTERM) {
          return ExitCode::kTerminated;
        }
        updates.forget_signal();
        note("(/exit or Ctrl-D leaves)\n");
        break;
    }
  }
}

struct ChatFlags {
  std::optional<std::string> base_url;
  std::optional<std::string> api_key;
  std::optional<std::string> ca_file;
  std::optional<std::string> system;
  SamplingOptions sampling;
  RunOptions options;
};

void add_chat_flags(FlagSet& flags, ChatFlags& chat) {
  flags.add_text(
      {.name = "system", .value = "TEXT", .group = "Prompt", .help = "the system message"},
      chat.system);
  flags.add_text({.name = "base-url",
                  .value = "URL",
                  .group = "Server",
                  .help = "talk with a running server of OpenAI's API, for instance "
                          "http://127.0.0.1:8000; MODEL is then its name there"},
                 chat.base_url);
  flags.add_text({.name = "api-key",
                  .value = "KEY",
                  .group = "Server",
                  .help = "sent as Authorization: Bearer KEY (or OPENAI_API_KEY)",
                  .common = false},
                 chat.api_key);
  add_ca_flag(flags, chat.ca_file);
  add_sampling_flags(flags, chat.sampling);
  add_stats_flag(flags, chat.options);
}

// Runs the whole conversation.
Result<ExitCode> talk(ChatPartner& partner,
                      const std::string& name,
                      UpdateQueue& updates,
                      const ChatFlags& chat) {
  const bool on_terminal = isatty(STDIN_FILENO) == 1 && isatty(STDERR_FILENO) == 1;
  Output out(STDOUT_FILENO);
  std::unique_ptr<LineReader> reader;
  if (on_terminal) {
    updates.watch_signals();
    note("{}: /help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves\n", name);
    reader = make_terminal_reader("> ");
  } else {
    reader = make_plain_reader();
  }
  ChatSession session(partner, updates, out, chat.system);
  const ExitCode code = converse(session, *reader, updates);
  if (chat.options.stats) {
    session.handle("/stats");
  }
  if (Result<void> written = out.status(); !written) {
    return tl::unexpected(written.error());
  }
  return code;
}

Result<ExitCode> talk_to_server(const ChatFlags& chat, const std::string& model) {
  const Result<HttpOrigin> origin = parse_origin(*chat.base_url);
  if (!origin) {
    return tl::unexpected(origin.error());
  }
  const std::unique_ptr<HttpClient> client =
      connect_to(*origin, chat.api_key, chat.ca_file, kChatSilence);
  const Result<std::string> name = model.empty() ? first_model(*client) : model;
  if (!name) {
    return tl::unexpected(name.error());
  }
  UpdateQueue updates;
  ServerChat partner(*client, updates, *name, chat.sampling);
  return talk(partner, fmt::format("{} at {}", *name, origin->url()), updates, chat);
}

}  // namespace

Result<ExitCode> run_chat(const Arguments& arguments) {
  CommandFrame frame("chat", "chat with a model in the terminal", "MODEL [FLAGS]");
  ChatFlags chat;
  add_chat_flags(frame.flags(), chat);
  const Result<std::optional<ExitCode>> begun = frame.begin(
      arguments, {.has_request_seed = true, .needs_model = [&chat] { return !chat.base_url; }});
  if (!begun || *begun) {
    return begun.map([](const std::optional<ExitCode>& code) { return *code; });
  }
  if (Result<void> checked = check_without_model(chat.sampling); !checked) {
    return tl::unexpected(refused_request(checked.error()));
  }
  if (chat.sampling.n.value_or(1) > 1) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("n: {} must be 1 in a chat, which goes on from one answer", *chat.sampling.n));
  }
  if (chat.base_url) {
    return talk_to_server(chat, frame.config().model);
  }
  UpdateQueue updates;
  const std::unique_ptr<Engine> engine = load_engine(frame.config());
  EngineChat partner(*engine, updates, chat.sampling);
  return talk(partner, frame.config().model, updates, chat);
}

}  // namespace warprow
