// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_frame.h"

#include <memory>
#include <optional>
#include <string>

#include <fmt/format.h>

namespace warprow {

Result<ExitCode> run_bench_throughput(const Arguments& arguments) {
  BenchFrame frame("bench throughput",
                   "measures how fast many prompts are done, all submitted at once");
  BenchLoad load;
  load.num_prompts = 100;
  int64_t num_iters_warmup = 0;
  std::optional<std::string> dataset;
  frame.add_lengths(load);
  frame.add_count("random-input-len", "another name of --input-len", load.input_len);
  frame.add_count("random-output-len", "another name of --output-len", load.output_len);
  frame.add_count("num-prompts", "prompts", load.num_prompts);
  frame.add_count("num-iters-warmup", "runs before the measured one", num_iters_warmup);
  frame.flags().add_text({.name = "dataset-name",
                          .value = "random",
                          .group = "Bench",
                          .help = "where prompts come from; random ids only"},
                         dataset);
  frame.add_sampling(load);
  const auto begun = frame.begin(arguments);
  if (!begun || *begun) {
    return begun.map([](const std::optional<ExitCode>& code) { return *code; });
  }
  if (dataset.value_or("random") != "random") {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--dataset-name: '{}' is not random", *dataset));
  }
  if (auto checked = check_counts({load.input_len, load.output_len, load.num_prompts},
                                  "input-len, output-len and num-prompts");
      !checked) {
    return tl::unexpected(checked.error());
  }
  const std::unique_ptr<Engine> engine = load_engine(frame.config());
  BenchRun run(*engine, load);
  for (int64_t i = 0; i < num_iters_warmup; ++i) {
    if (const Result<double> warm = run.run(); !warm) {
      return tl::unexpected(warm.error());
    }
  }
  const EngineStats before = engine->stats();
  const Result<double> seconds = run.run();
  if (!seconds) {
    return tl::unexpected(seconds.error());
  }
  const int64_t prompts = load.num_prompts;
  const int64_t output = prompts * load.sampling.n.value_or(1) * load.output_len;
  const int64_t total = prompts * load.input_len + output;
  AnswerJson json;
  json["elapsed_time"] = *seconds;
  json["num_requests"] = prompts;
  json["total_num_tokens"] = total;
  json["requests_per_second"] = static_cast<double>(prompts) / *seconds;
  json["tokens_per_second"] = static_cast<double>(total) / *seconds;
  json["output_tokens_per_second"] = static_cast<double>(output) / *seconds;
  json["graphs"] = graphs_json(before, engine->stats());
  return frame.report(
      json,
      fmt::format("throughput: {:.2f} requests/s, {:.1f} total tokens/s, {:.1f} output tokens/s{}",
                  json["requests_per_second"].get<double>(),
                  json["tokens_per_second"].get<double>(),
                  json["output_tokens_per_second"].get<double>(),
                  graphs_text(json["graphs"])));
}

}  // namespace warprow
