// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/serve_flags.h"
#include "cli/commands/command.h"
#include "cli/commands/command_frame.h"
#include "cli/flags/number_flags.h"
#include "cli/note.h"
#include "cli/output.h"
#include "cli/progress_bar.h"
#include "cli/simulate/arrival_trace.h"
#include "cli/simulate/cost_table.h"
#include "cli/simulate/simulation.h"
#include "cli/simulate/trace_of_prompts.h"
#include "engine/scheduler_settings.h"
#include "executor/plan_facts.h"
#include "worker/rank_plans.h"

#include <optional>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr int64_t kRandomPrompts = 1000;

struct SimulateFlags {
  std::optional<std::string> costs;
  std::optional<std::string> trace;
  std::string trace_format = "auto";
  double trace_speed = 1;
  ServeDataset dataset;
  ServeLoad load;
  ServeReportOptions report;
};

void add_simulate_flags(FlagSet& flags, SimulateFlags& own) {
  flags.add_text({.name = "costs",
                  .value = "FILE|NAME",
                  .group = "Simulation",
                  .help = "how long steps take: a file of `warprow bench costs`, or built in: " +
                          built_in_cost_names()},
                 own.costs);
  flags.add_text({.name = "trace",
                  .value = "FILE",
                  .group = "Simulation",
                  .help = "arrivals and lengths of requests; without it those of the flags below"},
                 own.trace);
  flags.add_value({.name = "trace-format",
                   .value = kTraceFormats,
                   .group = "Simulation",
                   .help = "of --trace [auto: by its first line]"},
                  [&own](const std::string& text) -> Result<void> {
                    const std::string known = fmt::format("|{}|", kTraceFormats);
                    if (text.empty() || known.find("|" + text + "|") == std::string::npos) {
                      return fail(
                          ErrorCode::kInvalidArgument,
                          fmt::format("--trace-format: '{}' is none of {}", text, kTraceFormats));
                    }
                    own.trace_format = text;
                    return {};
                  });
  add_number_flag(flags,
                  {.name = "trace-speed",
                   .value = "",
                   .group = "Simulation",
                   .help = "requests of the trace come so many times as fast"},
                  own.trace_speed);
  add_dataset_flags(flags, own.dataset, "requests in all; 0: all of a trace, else 1000");
  add_arrival_flags(flags, own.load);
  add_report_flags(flags, own.report);
}

Result<ArrivalTrace> read_arrivals(SimulateFlags& flags, const EngineConfig& config) {
  const int64_t most = flags.dataset.num_prompts;
  if (flags.trace) {
    if (!(flags.trace_speed > 0) || flags.trace_speed > 1e6) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("--trace-speed: {} is not above 0 and up to 1e6", flags.trace_speed));
    }
    // One request more than the limit, so that a larger file is refused and not read in part.
    Result<ArrivalTrace> trace =
        read_trace(*flags.trace, flags.trace_format, most > 0 ? most : kMaxTraceRequests + 1);
    if (trace) {
      for (TraceRequest& request : trace->requests) {
        request.arrival_s /= flags.trace_speed;
      }
    }
    return trace;
  }
  flags.dataset.num_prompts = most > 0 ? most : kRandomPrompts;
  flags.dataset.seed = flags.load.seed;
  return check_arrivals(flags.load).and_then([&] {
    return trace_of_prompts(flags.dataset, flags.load, config.model);
  });
}

// What the simulation has no costs for.
Result<void> check_plan(const ModelPlan& plan) {
  const auto refuse = [](std::string what) {
    return fail(ErrorCode::kUnsupported, "simulate: " + std::move(what));
  };
  if (plan.runner.max_drafts > 0) {
    return refuse("--speculative-config: how many drafts are right is not simulated");
  }
  if (plan.place.pipeline.size > 1) {
    return refuse(fmt::format("--pipeline-parallel-size {}: stages are not simulated, only 1 is",
                              plan.place.pipeline.size));
  }
  if (plan.pooler != nullptr) {
    return refuse("a pooling model generates no tokens");
  }
  return {};
}

std::string last_part(const std::string& model) { return model.substr(model.rfind('/') + 1); }

AnswerJson result_json(const SimulateFlags& flags,
                       const EngineConfig& config,
                       const CostTable& costs,
                       const ArrivalTrace& trace,
                       const SimulationResult& result) {
  const SchedulerStats& stats = result.scheduler;
  const double duration = result.records.duration_s;
  AnswerJson json;
  json["model_id"] = config.model;
  json["costs"] = *flags.costs;
  json["costs_machine"] = costs.machine;
  json["num_prompts"] = trace.requests.size();
  json["num_skipped"] = trace.num_skipped;
  json.update(serve_report(result.records, flags.report));
  json["steps"] = stats.num_steps;
  json["mean_rows_per_step"] = result.mean_rows;
  json["device_busy"] = duration > 0 ? result.busy_s / duration : 0.0;
  json["preemptions"] = stats.num_preemptions;
  json["prefix_hit_tokens"] = stats.num_prefix_hit_tokens;
  json["prefix_hit_rate"] = result.num_input_toks > 0
                                ? static_cast<double>(stats.num_prefix_hit_tokens) /
                                      static_cast<double>(result.num_input_toks)
                                : 0.0;
  json["max_kv_cache_usage"] =
      static_cast<double>(result.most_blocks_used) / static_cast<double>(stats.num_kv_blocks);
  json["max_requests_waiting"] = result.most_waiting;
  return json;
}

std::string result_text(const AnswerJson& json, const ServeReportOptions& options) {
  const auto percent = [&json](const char* name) { return 100 * json[name].get<double>(); };
  std::string text = serve_report_text(json, options);
  text += fmt::format(
      "\n\n{} steps of {:.1f} rows, the device is busy for {:.1f} % of the time\n"
      "{} preemptions; {} prompt tokens ({:.1f} %) from the prefix cache\n"
      "KV cache at most {:.1f} % used; at most {} requests waited",
      json["steps"].get<int64_t>(),
      json["mean_rows_per_step"].get<double>(),
      percent("device_busy"),
      json["preemptions"].get<int64_t>(),
      json["prefix_hit_tokens"].get<int64_t>(),
      percent("prefix_hit_rate"),
      percent("max_kv_cache_usage"),
      json["max_requests_waiting"].get<int64_t>());
  if (const auto skipped = json["num_skipped"].get<int64_t>(); skipped > 0) {
    text += fmt::format("\n{} requests of the trace without a prompt or an output are left out",
                        skipped);
  }
  return text;
}

Result<ExitCode> report_simulation(const SimulateFlags& flags,
                                   const SimulationResult& result,
                                   const AnswerJson& json,
                                   bool as_json) {
  Output out(STDOUT_FILENO);
  out.write(as_json ? json_line(json) : result_text(json, flags.report));
  out.end_line();
  for (const ServeRecord& record : result.records.requests) {
    if (!record.error.empty()) {
      note("warprow: the first request that failed: {}\n", record.error);
      break;
    }
  }
  const bool all_done = json["failed"] == 0;
  return out.status().map(
      [all_done] { return all_done ? ExitCode::kOk : ExitCode::kRequestFailed; });
}

}  // namespace

Result<ExitCode> run_simulate(const Arguments& arguments) {
  CommandFrame frame("simulate",
                     "predict how a server would perform under a load, without running the model",
                     "MODEL --costs FILE|NAME [--trace FILE] [FLAGS]");
  SimulateFlags flags;
  flags.dataset.num_prompts = 0;
  add_simulate_flags(frame.flags(), flags);
  frame.add_output_flag();
  const auto begun = frame.begin(arguments, {.has_request_seed = true, .runs_ranks = false});
  if (!begun || *begun) {
    return begun.map([](const std::optional<ExitCode>& code) { return *code; });
  }
  if (!flags.costs) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--costs is missing: a file of `warprow bench costs`, or one of {}",
                            built_in_cost_names()));
  }
  const Result<CostTable> costs = find_cost_table(*flags.costs);
  if (!costs) {
    return tl::unexpected(costs.error());
  }
  const Result<ArrivalTrace> trace = read_arrivals(flags, frame.config());
  if (!trace) {
    return tl::unexpected(trace.error());
  }
  if (auto checked = check_trace(*trace, flags.trace.value_or("--num-prompts")); !checked) {
    return tl::unexpected(checked.error());
  }
  const Result<std::vector<ModelPlan>> plans =
      plan_ranks(frame.config(), this_machine(frame.config().device));
  if (!plans) {
    return tl::unexpected(plans.error());
  }
  const ModelPlan& plan = plans->front();
  if (auto checked = check_plan(plan); !checked) {
    return tl::unexpected(checked.error());
  }
  if (last_part(costs->model) != last_part(frame.config().model)) {
    note("warprow: the costs are those of {}, the model is {}\n",
         costs->model,
         frame.config().model);
  }
  const ModelFacts facts = plan_facts(plan);
  const SchedulerConfig scheduler =
      scheduler_config(frame.config(), facts, plan.runner.max_steps_in_flight);
  SimulationOptions options;
  options.target_step_us = target_step_us(frame.config(), facts);
  options.max_concurrency = flags.load.max_concurrency;
  SimulationResult result;
  {
    ProgressBar progress(static_cast<int64_t>(trace->requests.size()), isatty(STDERR_FILENO) == 1);
    options.on_progress = [&progress](int64_t done, int64_t tokens) {
      progress.update(done, tokens);
    };
    result = simulate(scheduler, *costs, *trace, options);
  }
  const AnswerJson json = result_json(flags, frame.config(), *costs, *trace, result);
  return report_simulation(flags, result, json, frame.as_json());
}

}  // namespace warprow
