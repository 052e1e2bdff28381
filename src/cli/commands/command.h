// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "cli/exit_code.h"

#include <string>
#include <vector>

namespace warprow {

using Arguments = std::vector<std::string>;  // the arguments after the command's name

// A subcommand. An Error is printed as one line and determines the exit code.
struct Command {
  const char* name;
  const char* summary;
  Result<ExitCode> (*run)(const Arguments& arguments);
};

// The whole program except for catching exceptions: finds the command and runs it.
Result<ExitCode> run_command_line(const Arguments& arguments);

Result<ExitCode> run_generate(const Arguments& arguments);
Result<ExitCode> run_embed(const Arguments& arguments);
Result<ExitCode> run_serve(const Arguments& arguments);
Result<ExitCode> run_chat(const Arguments& arguments);
Result<ExitCode> run_tokenize(const Arguments& arguments);
Result<ExitCode> run_detokenize(const Arguments& arguments);
Result<ExitCode> run_plan(const Arguments& arguments);
Result<ExitCode> run_bench(const Arguments& arguments);
Result<ExitCode> run_simulate(const Arguments& arguments);
Result<ExitCode> run_run_batch(const Arguments& arguments);
Result<ExitCode> run_top(const Arguments& arguments);
Result<ExitCode> run_explain(const Arguments& arguments);
Result<ExitCode> run_verify(const Arguments& arguments);
Result<ExitCode> run_replay(const Arguments& arguments);
Result<ExitCode> run_selftest(const Arguments& arguments);

}  // namespace warprow
