// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_frame.h"
#include "cli/commands/command.h"

#include <string>

#include <fmt/format.h>

namespace warprow {

Result<ExitCode> run_bench(const Arguments& arguments) {
  constexpr Command kKinds[] = {
      {"latency", "one batch from submission to its last token", &run_bench_latency},
      {"throughput", "many prompts, all submitted at once", &run_bench_throughput},
      {"startup", "process start to a ready engine and to a first token", &run_bench_startup},
      {"step", "host and device time of one steady decode step", &run_bench_step},
      {"costs", "a table of how long steps take, for `warprow simulate`", &run_bench_costs},
      {"serve", "a load of requests on a running server", &run_bench_serve},
  };
  const std::string kind = arguments.empty() ? "" : arguments.front();
  const Arguments rest(arguments.begin() + (arguments.empty() ? 0 : 1), arguments.end());
  if (kind == kStartupChild) {
    return run_bench_startup_child(rest);
  }
  std::string names;
  for (const Command& command : kKinds) {
    if (kind == command.name) {
      return command.run(rest);
    }
    names += fmt::format("{}{}", names.empty() ? "" : "|", command.name);
  }
  if (kind == "-h" || kind == "--help") {
    fmt::print("usage: warprow bench {} [MODEL] [FLAGS]; each has its own --help\n\n", names);
    for (const Command& command : kKinds) {
      fmt::print("  {:<12}{}\n", command.name, command.summary);
    }
    return ExitCode::kOk;
  }
  return fail(ErrorCode::kInvalidArgument, fmt::format("bench: '{}' is none of {}", kind, names));
}

}  // namespace warprow
