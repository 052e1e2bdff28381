// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/command.h"
#include "cli/commands/command_frame.h"
#include "cli/output.h"
#include "worker/rank_plans.h"

#include <optional>
#include <unistd.h>
#include <vector>

namespace warprow {

Result<ExitCode> run_plan(const Arguments& arguments) {
  CommandFrame frame(
      "plan", "show how much memory a model needs, from its headers alone", "MODEL [FLAGS]");
  frame.add_output_flag();
  const Result<std::optional<ExitCode>> begun = frame.begin(arguments, {.runs_ranks = false});
  if (!begun || *begun) {
    return begun.map([](const std::optional<ExitCode>& code) { return *code; });
  }
  const Result<std::vector<ModelPlan>> ranks =
      plan_ranks(frame.config(), this_machine(frame.config().device));
  if (!ranks) {
    return tl::unexpected(ranks.error());
  }
  Output out(STDOUT_FILENO);
  out.write(frame.as_json() ? rank_plans_json(*ranks) : format_rank_plans(*ranks));
  out.end_line();
  return out.status().map([] { return ExitCode::kOk; });
}

}  // namespace warprow
