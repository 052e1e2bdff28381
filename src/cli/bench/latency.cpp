// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_frame.h"
#include "cli/progress_bar.h"

#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

struct LatencyFlags {
  BenchLoad load;
  std::vector<int64_t> batch_sizes{8};
  int64_t num_iters_warmup = 10;
  int64_t num_iters = 30;
};

// The measurements for one batch size.
struct Latency {
  std::vector<double> seconds;        // of whole answers
  std::vector<double> first_seconds;  // of answers of one token
  AnswerJson graphs;                  // during `seconds`
};

Result<std::vector<double>> repeat(BenchRun& run,
                                   int64_t output_len,
                                   int64_t num_warmup,
                                   int64_t num_iters) {
  ProgressBar progress(num_warmup + num_iters, isatty(STDERR_FILENO) == 1);
  std::vector<double> seconds;
  for (int64_t i = 0; i < num_warmup + num_iters; ++i) {
    const Result<double> took = run.run(output_len);
    if (!took) {
      return tl::unexpected(took.error());
    }
    if (i >= num_warmup) {
      seconds.push_back(*took);
    }
    progress.update(i + 1, 0);
  }
  return seconds;
}

Result<Latency> measure_latency(Engine& engine, const LatencyFlags& flags, int64_t batch_size) {
  BenchLoad load = flags.load;
  load.num_prompts = batch_size;
  BenchRun run(engine, load);
  const Result<std::vector<double>> warm = repeat(run, load.output_len, flags.num_iters_warmup, 0);
  if (!warm) {
    return tl::unexpected(warm.error());
  }
  const EngineStats before = engine.stats();
  const Result<std::vector<double>> whole = repeat(run, load.output_len, 0, flags.num_iters);
  if (!whole) {
    return tl::unexpected(whole.error());
  }
  const EngineStats after = engine.stats();
  if (load.output_len == 1) {
    return Latency{*whole, *whole, graphs_json(before, after)};
  }
  const Result<std::vector<double>> first =
      repeat(run, 1, flags.num_iters_warmup > 0 ? 1 : 0, flags.num_iters);
  if (!first) {
    return tl::unexpected(first.error());
  }
  return Latency{*whole, *first, graphs_json(before, after)};
}

AnswerJson latency_json(const BenchLoad& load, int64_t batch_size, const Latency& latency) {
  const double average = mean(latency.seconds);
  const double first = percentile(latency.first_seconds, 50);
  const int64_t num_answers = batch_size * load.sampling.n.value_or(1);
  AnswerJson json;
  json["avg_latency"] = average;
  json["latencies"] = latency.seconds;
  json["percentiles"] = percentiles_json(latency.seconds);
  json["batch_size"] = batch_size;
  json["input_len"] = load.input_len;
  json["output_len"] = load.output_len;
  json["output_tokens_per_second"] = static_cast<double>(num_answers * load.output_len) / average;
  json["first_token_latency"] = first;
  json["first_token_latencies"] = latency.first_seconds;
  json["prompt_tokens_per_second"] = static_cast<double>(batch_size * load.input_len) / first;
  if (load.output_len > 1) {
    json["decode_ms_per_step"] = 1000.0 * (percentile(latency.seconds, 50) - first) /
                                 static_cast<double>(load.output_len - 1);
  }
  json["graphs"] = latency.graphs;
  return json;
}

std::string latency_text(const AnswerJson& json) {
  std::string text = fmt::format("batch {}: avg latency {:.4f} s, {:.1f} output tokens/s",
                                 json["batch_size"].get<int64_t>(),
                                 json["avg_latency"].get<double>(),
                                 json["output_tokens_per_second"].get<double>());
  text += fmt::format("\nfirst token {:.2f} ms, {:.0f} prompt tokens/s",
                      1000.0 * json["first_token_latency"].get<double>(),
                      json["prompt_tokens_per_second"].get<double>());
  if (json.contains("decode_ms_per_step")) {
    text += fmt::format("; decode {:.4f} ms a step", json["decode_ms_per_step"].get<double>());
  }
  for (const auto& [p, value] : json["percentiles"].items()) {
    text += fmt::format("\np{} {:.4f} s", p, value.get<double>());
  }
  return text + graphs_text(json["graphs"]);
}

}  // namespace

Result<ExitCode> run_bench_latency(const Arguments& arguments) {
  BenchFrame frame("bench latency", "measures how long one batch takes from prompt to last token");
  LatencyFlags flags;
  frame.add_lengths(flags.load);
  frame.add_counts(
      "batch-size", "prompts that run together; several: one after another", flags.batch_sizes);
  frame.add_count("num-iters-warmup", "runs before the measured ones", flags.num_iters_warmup);
  frame.add_count("num-iters", "measured runs", flags.num_iters);
  frame.add_sampling(flags.load);
  const auto begun = frame.begin(arguments);
  if (!begun || *begun) {
    return begun.map([](const std::optional<ExitCode>& code) { return *code; });
  }
  std::vector<int64_t> counts = flags.batch_sizes;
  counts.insert(counts.end(), {flags.load.input_len, flags.load.output_len, flags.num_iters});
  if (auto checked = check_counts(counts, "input-len, output-len, batch-size and num-iters");
      !checked) {
    return tl::unexpected(checked.error());
  }
  const std::unique_ptr<Engine> engine = load_engine(frame.config());
  AnswerJson results = AnswerJson::array();
  std::string text;
  for (const int64_t batch_size : flags.batch_sizes) {
    const Result<Latency> latency = measure_latency(*engine, flags, batch_size);
    if (!latency) {
      return tl::unexpected(latency.error());
    }
    results.push_back(latency_json(flags.load, batch_size, *latency));
    text += (text.empty() ? "" : "\n\n") + latency_text(results.back());
  }
  // The JSON of one batch size has vLLM's format. Several batch sizes are a list of such objects.
  return frame.report(results.size() == 1 ? results.front() : AnswerJson{{"results", results}},
                      text);
}

}  // namespace warprow
