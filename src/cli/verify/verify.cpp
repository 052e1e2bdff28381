// SPDX-License-Identifier: Apache-2.0
#include "cli/verify/verify.h"

#include "cli/commands/command.h"
#include "cli/commands/command_frame.h"
#include "cli/flags/number_flags.h"
#include "cli/output.h"
#include "cli/progress_bar.h"
#include "kv/kv_math.h"
#include "worker/model_plan.h"

#include <algorithm>
#include <optional>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

enum class Verdict : uint8_t { kHeld, kDiffers, kNotExercised, kNotApplicable };

const char* verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kHeld:
      return "held";
    case Verdict::kDiffers:
      return "differs";
    case Verdict::kNotExercised:
      return "not exercised";
    case Verdict::kNotApplicable:
      return "not applicable";
  }
  return "?";
}

struct CaseOutcome {
  Verdict verdict = Verdict::kHeld;
  int64_t num_tokens = 0;
  int64_t num_different = 0;     // requests
  std::string first_difference;  // with the request's number
};

CaseOutcome compare(const std::vector<VerifyAnswer>& expected,
                    const std::vector<VerifyAnswer>& got) {
  CaseOutcome outcome;
  for (size_t i = 0; i < expected.size(); ++i) {
    outcome.num_tokens += static_cast<int64_t>(got[i].tokens.size());
    const std::string found = difference(expected[i], got[i]);
    if (!found.empty() && outcome.num_different++ == 0) {
      outcome.first_difference = fmt::format("request {}: {}", i, found);
    }
  }
  outcome.verdict = outcome.num_different > 0 ? Verdict::kDiffers : Verdict::kHeld;
  return outcome;
}

std::string text_of_case(const VerifyCase& the, const CaseOutcome& outcome, size_t num_requests) {
  std::string text =
      fmt::format("{:<14}{:<34}{}", the.name, the.condition, verdict_name(outcome.verdict));
  if (outcome.verdict == Verdict::kHeld) {
    text += fmt::format(": {} requests, {} tokens", num_requests, outcome.num_tokens);
  }
  if (outcome.verdict == Verdict::kDiffers) {
    text += fmt::format(
        " in {} of {} requests; {}", outcome.num_different, num_requests, outcome.first_difference);
  }
  return text + '\n';
}

AnswerJson json_of_case(const VerifyCase& the, const CaseOutcome& outcome, size_t num_requests) {
  return {{"case", the.name},
          {"condition", the.condition},
          {"verdict", verdict_name(outcome.verdict)},
          {"requests", num_requests},
          {"tokens", outcome.num_tokens},
          {"different_requests", outcome.num_different},
          {"first_difference", outcome.first_difference}};
}

Result<VerifySizes> sizes_of(const EngineConfig& config, const VerifyLoad& load) {
  const Result<ModelPlan> plan = plan_model(config, this_machine(config.device));
  if (!plan) {
    return tl::unexpected(plan.error());
  }
  int64_t state_blocks = 0;
  for (const KvGroupSpec& group : plan->kv.groups) {
    state_blocks += max_state_blocks(group);
  }
  return VerifySizes{plan->config.device == "cuda",
                     state_blocks,
                     plan->memory.kv_block_bytes,
                     load.max_input_len + load.output_len + 1};
}

}  // namespace

Result<VerifyReport> verify(const EngineConfig& config,
                            const VerifySizes& sizes,
                            const VerifyLoad& load,
                            const LoadEngine& load_engine,
                            const VerifyProgress& progress) {
  int64_t num_tokens = 0;
  const auto on_tokens = [&](int64_t more) { progress(num_tokens += more); };
  std::vector<GenerationRequest> requests;
  std::vector<VerifyAnswer> expected;
  {
    const std::unique_ptr<Engine> engine = load_engine(reference_config(config, sizes));
    requests = draw_requests(load, engine->model_facts().vocab_size);
    auto alone = run_case(*engine, VerifyOrder::kAlone, requests, on_tokens);
    if (!alone) {
      return tl::unexpected(alone.error());
    }
    expected = *std::move(alone);
  }
  VerifyReport report{AnswerJson::array(), "", true};
  for (const VerifyCase& the : verify_cases()) {
    EngineConfig changed = config;
    CaseOutcome outcome;
    if (!the.set(changed, sizes)) {
      outcome.verdict = Verdict::kNotApplicable;
    } else {
      const std::unique_ptr<Engine> engine = load_engine(changed);
      const auto got = run_case(*engine, the.order, requests, on_tokens);
      if (!got) {
        return tl::unexpected(got.error());
      }
      outcome = compare(expected, *got);
      if (outcome.verdict == Verdict::kHeld && the.proof != nullptr &&
          the.proof(engine->stats()) == 0) {
        outcome.verdict = Verdict::kNotExercised;
      }
    }
    report.held = report.held && outcome.verdict != Verdict::kDiffers;
    report.text += text_of_case(the, outcome, requests.size());
    report.json.push_back(json_of_case(the, outcome, requests.size()));
  }
  report.text += report.held ? "every promise that was exercised held" : "NOT every promise held";
  report.json = {{"held", report.held}, {"cases", std::move(report.json)}};
  return report;
}

Result<ExitCode> run_verify(const Arguments& arguments) {
  CommandFrame frame(
      "verify",
      "check on this machine that an answer does not depend on batch, chunks, cache, "
      "preemption, drafts, graphs or sleep",
      "MODEL [FLAGS]");
  VerifyLoad load;
  const auto add = [&](const char* name, const char* help, int64_t& target) {
    add_count_flag(
        frame.flags(), {.name = name, .value = "", .group = "Verify", .help = help}, target);
  };
  add("num-requests", "requests in each case", load.num_requests);
  add("max-input-len", "longest prompt in tokens", load.max_input_len);
  add("output-len", "tokens of each answer", load.output_len);
  add("load-seed", "draws prompts and seeds; another one draws other requests", load.seed);
  frame.add_output_flag();
  const Result<std::optional<ExitCode>> begun = frame.begin(arguments, {});
  if (!begun || *begun) {
    return begun.map([](const std::optional<ExitCode>& code) { return *code; });
  }
  if (std::min({load.num_requests, load.max_input_len, load.output_len}) < 1) {
    return fail(ErrorCode::kInvalidArgument,
                "num-requests, max-input-len and output-len must be at least 1");
  }
  EngineConfig config = frame.config();
  if (config.distributed_executor_backend == "external_launcher") {
    return fail(ErrorCode::kInvalidArgument,
                "--distributed-executor-backend: verify loads the model several times, which "
                "external_launcher does not; use mp");
  }
  if (config.max_model_len == 0) {
    config.max_model_len = static_cast<int32_t>(load.max_input_len + load.output_len + 1);
  }
  const Result<VerifySizes> sizes = sizes_of(config, load);
  if (!sizes) {
    return tl::unexpected(sizes.error());
  }
  // One case runs its load twice; the reference is one more.
  const auto num_runs = static_cast<int64_t>(verify_cases().size()) + 2;
  ProgressBar bar(num_runs * load.num_requests * load.output_len, isatty(STDERR_FILENO) == 1);
  const auto report = verify(
      config,
      *sizes,
      load,
      [](const EngineConfig& settings) { return load_engine(settings); },
      [&](int64_t num_tokens) { bar.update(num_tokens, num_tokens); });
  bar.clear();
  if (!report) {
    return tl::unexpected(report.error());
  }
  Output out(STDOUT_FILENO);
  out.write(frame.as_json() ? json_line(report->json) : report->text);
  out.end_line();
  return out.status().map([&] { return report->held ? ExitCode::kOk : ExitCode::kRequestFailed; });
}

}  // namespace warprow
