// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/command.h"
#include "cli/commands/command_frame.h"
#include "cli/output.h"
#include "worker/model_plan.h"

#include <optional>
#include <unistd.h>

namespace warprow {

Result<ExitCode> run_plan(const Arguments& arguments) {
  CommandFrame frame(
      "plan", "show how much memory a model needs, from its headers alone", "MODEL [FLAGS]");
  frame.add_output_flag();
  const Result<std::optional<ExitCode>> begun = frame.begin(arguments, {});
  if (!begun || *begun) {
    return begun.map([](const std::optional<ExitCode>& code) { return *code; });
  }
  const Result<ModelPlan> plan = plan_model(frame.config(), this_machine(frame.config().device));
  if (!plan) {
    return tl::unexpected(plan.error());
  }
  Output out(STDOUT_FILENO);
  out.write(frame.as_json() ? plan_json(plan->memory) : format_plan(plan->memory));
  out.end_line();
  return out.status().map([] { return ExitCode::kOk; });
}

}  // namespace warprow
