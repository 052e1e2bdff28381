// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_frame.h"
#include "cli/bench/step_clock.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

struct StepFlags {
  BenchLoad load{.input_len = 128, .num_prompts = 8};
  int64_t num_warmup = 32;
  int64_t num_steps = 128;
};

// The number of output tokens per request. All rows must still decode during the last measured steps, also if all
// drafts are accepted, and the first rows already decode while the last prompt is prefilled.
int64_t output_len(const StepFlags& flags, const ModelFacts& facts) {
  const int64_t prompt_tokens = flags.load.input_len * flags.load.num_prompts;
  const int64_t prompt_tokens_per_step =
      std::max<int64_t>(1, facts.max_num_batched_tokens - flags.load.num_prompts);
  const int64_t num_steps =
      prompt_tokens / prompt_tokens_per_step + flags.num_warmup + 2 * flags.num_steps + 8;
  return num_steps * (1 + facts.max_drafts);
}

AnswerJson spread_json(const std::vector<double>& values) {
  return {
      {"mean", mean(values)}, {"median", percentile(values, 50)}, {"p99", percentile(values, 99)}};
}

std::vector<double> column(const StepRecord& record,
                           const std::function<double(const StepSample&)>& value) {
  std::vector<double> values;
  values.reserve(record.samples.size());
  for (const StepSample& sample : record.samples) {
    values.push_back(value(sample));
  }
  return values;
}

// Busy and idle time of the device; null if no times were taken.
AnswerJson device_json(const StepRecord& record) {
  const AnswerJson times = AnswerJson::parse(record.device_times, nullptr, false);
  if (!times.is_array() || times.size() < 2) {
    return nullptr;
  }
  std::vector<double> busy;
  std::vector<double> idle;
  for (size_t i = 1; i < times.size(); ++i) {
    busy.push_back(times[i][1].get<double>() - times[i][0].get<double>());
    idle.push_back(times[i][0].get<double>() - times[i - 1][1].get<double>());
  }
  return {{"busy_us", spread_json(busy)}, {"idle_us", spread_json(idle)}};
}

AnswerJson step_json(const StepFlags& flags, const StepRecord& record) {
  const auto spread = [&](const auto& value) { return spread_json(column(record, value)); };
  AnswerJson json;
  json["batch_size"] = flags.load.num_prompts;
  json["num_steps"] = record.samples.size();
  json["mean_context_len"] = mean(column(record, &StepSample::context_len));
  json["mean_num_tokens"] = mean(column(record, &StepSample::num_toks));
  json["wall_us"] = spread(&StepSample::wall_us);
  json["host_us"] = spread(&StepSample::host_us);
  json["execute_model_us"] = spread(&StepSample::execute_us);
  json["sample_tokens_us"] = spread(&StepSample::sample_us);
  json["take_output_us"] = spread(&StepSample::take_us);
  json["schedule_us"] = spread(&StepSample::plan_us);
  json["wait_us"] = spread(&StepSample::wait_us);
  const auto calls = static_cast<double>(record.after.driver_calls - record.before.driver_calls);
  if (calls > 0) {
    json["driver_calls_per_step"] = calls / static_cast<double>(record.samples.size());
  }
  if (const AnswerJson device = device_json(record); !device.is_null()) {
    json["device"] = device;
  }
  json["graphs"] = graphs_json(record.before, record.after);
  return json;
}

std::string spread_text(const char* name, const AnswerJson& spread) {
  return fmt::format("\n{:<26}{:>10.1f} us, p99 {:.1f}",
                     name,
                     spread["median"].get<double>(),
                     spread["p99"].get<double>());
}

std::string step_text(const AnswerJson& json) {
  std::string text =
      fmt::format("{} rows decode {:.4g} tokens, {:.0f} tokens of context, medians of {} steps",
                  json["batch_size"].get<int64_t>(),
                  json["mean_num_tokens"].get<double>(),
                  json["mean_context_len"].get<double>(),
                  json["num_steps"].get<int64_t>());
  text += spread_text("step", json["wall_us"]);
  text += spread_text("host", json["host_us"]);
  text += spread_text("  execute_model", json["execute_model_us"]);
  text += spread_text("  sample_tokens", json["sample_tokens_us"]);
  text += spread_text("  take_output", json["take_output_us"]);
  text += spread_text("  schedule and deliver", json["schedule_us"]);
  text += spread_text("host waits", json["wait_us"]);
  if (json.contains("device")) {
    text += spread_text("device busy in a step", json["device"]["busy_us"]);
    text += spread_text("device idle between steps", json["device"]["idle_us"]);
  }
  if (json.contains("driver_calls_per_step")) {
    text +=
        fmt::format("\ndriver calls a step: {:.2f}", json["driver_calls_per_step"].get<double>());
  }
  return text + graphs_text(json["graphs"]);
}

// Runs the load once with the step clock around the executor.
Result<StepRecord> measure(const EngineConfig& config, const StepFlags& flags) {
  StepRecord record;
  record.num_rows = static_cast<int32_t>(flags.load.num_prompts);
  record.num_warmup = static_cast<int32_t>(flags.num_warmup);
  record.num_steps = static_cast<int32_t>(flags.num_steps);
  {
    const std::unique_ptr<Engine> engine =
        load_engine(config, [&record](std::unique_ptr<Executor> executor) {
          return make_step_clock(std::move(executor), record);
        });
    const ModelFacts& facts = engine->model_facts();
    if (facts.max_num_seqs < record.num_rows) {
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format(
              "batch-size {} is above max-num-seqs {}", record.num_rows, facts.max_num_seqs));
    }
    BenchLoad load = flags.load;
    load.output_len = output_len(flags, facts);
    if (const Result<double> ran = BenchRun(*engine, load).run(); !ran) {
      return tl::unexpected(ran.error());
    }
  }
  if (std::cmp_less(record.samples.size(), record.num_steps)) {
    return fail(
        ErrorCode::kInternal,
        fmt::format(
            "only {} steps of {} rows ran in a row", record.samples.size(), record.num_rows));
  }
  return record;
}

}  // namespace

Result<ExitCode> run_bench_step(const Arguments& arguments) {
  BenchFrame frame("bench step", "measures host and device time of one steady decode step");
  StepFlags flags;
  frame.add_count("batch-size", "rows that decode together", flags.load.num_prompts);
  frame.add_count("input-len", "tokens of context at which they begin", flags.load.input_len);
  frame.add_count("num-steps-warmup", "steps before the measured ones", flags.num_warmup);
  frame.add_count(
      "num-steps", "measured steps, and as many more for the device's times", flags.num_steps);
  frame.add_sampling(flags.load);
  const auto begun = frame.begin(arguments);
  if (!begun || *begun) {
    return begun.map([](const std::optional<ExitCode>& code) { return *code; });
  }
  if (auto checked = check_counts({flags.load.num_prompts, flags.load.input_len, flags.num_steps},
                                  "batch-size, input-len and num-steps");
      !checked) {
    return tl::unexpected(checked.error());
  }
  EngineConfig config = frame.config();
  config.long_prefill_token_threshold = 0;  // otherwise early rows decode far ahead of the rest
  const Result<StepRecord> record = measure(config, flags);
  if (!record) {
    return tl::unexpected(record.error());
  }
  const AnswerJson json = step_json(flags, *record);
  return frame.report(json, step_text(json));
}

}  // namespace warprow
