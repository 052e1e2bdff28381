// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/command.h"

#include "base/cpu_isa.h"
#include "cli/flags/flag_set.h"
#include "cli/flags/help_text.h"
#include "cli/note.h"
#include "executor/mp/rank_main.h"

#include <cstdio>
#include <string_view>

#include <fmt/format.h>

namespace warprow {
namespace {

// In the order of --help.
constexpr Command kCommands[] = {
    {"generate", "generate text from a prompt or a file of prompts", &run_generate},
    {"embed", "turn texts into vectors: embeddings, or scores of labels", &run_embed},
    {"serve", "serve a model over an OpenAI-compatible API", &run_serve},
    {"chat", "chat with a model in the terminal", &run_chat},
    {"tokenize", "show the tokens of a text", &run_tokenize},
    {"detokenize", "turn token ids into text", &run_detokenize},
    {"plan", "show how much memory a model needs", &run_plan},
    {"bench",
     "measure latency, throughput, startup, step or costs; serve: load-test a running server",
     &run_bench},
    {"simulate",
     "predict how a server would perform under a load, without running it",
     &run_simulate},
    {"run-batch", "run a file of requests in OpenAI's batch format", &run_run_batch},
    {"top", "watch a running server", &run_top},
    {"explain", "say why a request to a running server took its time", &run_explain},
    {"verify", "check that answers do not depend on batch, cache or schedule", &run_verify},
    {"replay", "run a recording of steps again and find the first difference", &run_replay},
    {"selftest", "test sleep and wake-up on this machine", &run_selftest},
};

std::string overview() {
  std::string out =
      "warprow runs language models.\n\nusage: warprow COMMAND MODEL [FLAGS]\n\nCommands\n";
  for (const Command& command : kCommands) {
    out += help_row(command.name, command.summary);
  }
  out +=
      "\nMODEL is a .gguf file, a Hugging Face directory, an alias (smollm2), or "
      "org/name[@revision][:QUANT] on\n"
      "the Hugging Face Hub, downloaded to its cache once. Answers go to stdout, everything else "
      "to "
      "stderr.\n\n"
      "  warprow COMMAND --help          the flags most used\n"
      "  warprow COMMAND --help=all      every flag; --help=GROUP or --help=FLAG a part of them\n"
      "  warprow --version\n\n"
      "A setting may be a flag (--max-num-seqs 8), a variable (WARPROW_MAX_NUM_SEQS=8) or a line "
      "of a --config\n"
      "file (max-num-seqs: 8). Sizes: 32k = 32,000, 32K = 32,768, 24MiB, 1.5GiB.\n\n";
  return out + exit_codes_help();
}

const Command* find_command(std::string_view name) {
  for (const Command& command : kCommands) {
    if (name == command.name) {
      return &command;
    }
  }
  return nullptr;
}

tl::unexpected<Error> unknown_command(const std::string& name) {
  std::vector<std::string> known;
  for (const Command& command : kCommands) {
    known.emplace_back(command.name);
  }
  const std::string near = nearest_word(name, known);
  return fail(ErrorCode::kInvalidArgument,
              near.empty() ? fmt::format("unknown command '{}'; see warprow --help", name)
                           : fmt::format("unknown command '{}'; did you mean {}?", name, near));
}

}  // namespace

Result<ExitCode> run_command_line(const Arguments& arguments) {
  if (arguments.empty()) {
    note("{}", overview());
    return ExitCode::kUsage;
  }
  const std::string& name = arguments.front();
  if (name == "--version") {
    fmt::print("warprow {} ({}; CPU kernels: {})\n",
               WARPROW_VERSION,
               WARPROW_BACKENDS,
               cpu_isa_name(cpu_isa()));
    return ExitCode::kOk;
  }
  Arguments rest(arguments.begin() + 1, arguments.end());
  if (const auto rank = RankArguments::parse(arguments)) {  // the mp executor starts this
    return static_cast<ExitCode>(rank_main(*rank));
  }
  if (name == "help" && !rest.empty() && find_command(rest.front()) != nullptr) {
    return run_command_line({rest.front(), "--help"});
  }
  if (name == "help" || name == "-h" || name == "--help" || name == "--help=all") {
    fmt::print("{}", overview());
    return ExitCode::kOk;
  }
  const Command* command = find_command(name);
  if (command == nullptr) {
    return unknown_command(name);
  }
  return command->run(rest);
}

}  // namespace warprow
