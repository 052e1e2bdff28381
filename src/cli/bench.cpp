// SPDX-License-Identifier: Apache-2.0
#include "cli/answer.h"
#include "cli/bench_run.h"
#include "cli/command.h"
#include "cli/command_frame.h"
#include "cli/output.h"
#include "cli/progress_bar.h"
#include "config/parse_size.h"

#include <fstream>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

// What both kinds are told.
struct BenchFlags {
  BenchLoad load;
  int64_t num_iters_warmup = 0;
  int64_t num_iters = 1;
  std::optional<std::string> output_json;
};

void add_count(FlagSet& flags, const char* name, const char* help, int64_t& target) {
  flags.add_value(
      {.name = name, .value = "N", .group = "Bench", .help = fmt::format("{} [{}]", help, target)},
      [name, &target](const std::string& text) -> Result<void> {
        const Result<int64_t> value = parse_size(text);
        if (!value || *value < 0 || *value > 1'000'000) {
          return fail(ErrorCode::kInvalidArgument,
                      fmt::format("--{}: '{}' is not a number from 0 to 1000000", name, text));
        }
        target = *value;
        return {};
      });
}

void add_common_flags(CommandFrame& frame, BenchFlags& flags) {
  add_count(frame.flags(), "input-len", "tokens of each prompt", flags.load.input_len);
  add_count(frame.flags(), "output-len", "tokens that each generates", flags.load.output_len);
  frame.flags().add_text({.name = "output-json",
                          .value = "FILE",
                          .group = "Bench",
                          .help = "also write the result as JSON to FILE"},
                         flags.output_json);
  frame.add_output_flag();
}

// Prints the result as asked and writes it to --output-json.
Result<ExitCode> report(const CommandFrame& frame,
                        const BenchFlags& flags,
                        const AnswerJson& json,
                        const std::string& text) {
  if (flags.output_json) {
    std::ofstream file(*flags.output_json);
    if (!(file << json_line(json) << '\n')) {
      return fail(ErrorCode::kNotFound,
                  fmt::format("--output-json: cannot write '{}'", *flags.output_json));
    }
  }
  Output out(STDOUT_FILENO);
  out.write(frame.as_json() ? json_line(json) : text);
  out.end_line();
  return out.status().map([] { return ExitCode::kOk; });
}

// Warm-up runs, then the measured ones; seconds of each.
std::vector<double> measure(BenchRun& run, const BenchFlags& flags) {
  ProgressBar progress(flags.num_iters_warmup + flags.num_iters, isatty(STDERR_FILENO) == 1);
  const int64_t tokens = flags.load.num_prompts * flags.load.output_len;
  std::vector<double> seconds;
  for (int64_t i = 0; i < flags.num_iters_warmup + flags.num_iters; ++i) {
    const double took = run.run();
    if (i >= flags.num_iters_warmup) {
      seconds.push_back(took);
    }
    progress.update(i + 1, (i + 1) * tokens);
  }
  return seconds;
}

Result<void> check_counts(const BenchFlags& flags) {
  if (flags.load.input_len < 1 || flags.load.output_len < 1 || flags.load.num_prompts < 1 ||
      flags.num_iters < 1) {
    return fail(ErrorCode::kInvalidArgument,
                "input-len, output-len, the number of prompts and num-iters must be at least 1");
  }
  return {};
}

// Loads the model and runs the load on it; seconds of each measured run.
Result<std::vector<double>> load_and_measure(const CommandFrame& frame, const BenchFlags& flags) {
  if (auto counts = check_counts(flags); !counts) {
    return tl::unexpected(counts.error());
  }
  const std::unique_ptr<Engine> engine = load_engine(frame.config());
  Result<BenchRun> run = BenchRun::prepare(*engine, flags.load);
  if (!run) {
    return tl::unexpected(run.error());
  }
  return measure(*run, flags);
}

// Prefix caching is off unless asked for, as in vLLM: repeated prompts would measure the cache.
Arguments without_prefix_cache(const Arguments& arguments) {
  Arguments all{"--no-enable-prefix-caching"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return all;
}

Result<ExitCode> latency(const Arguments& arguments) {
  CommandFrame frame("bench latency",
                     "measures how long one batch takes from prompt to last token",
                     "MODEL [FLAGS]");
  BenchFlags flags;
  flags.num_iters_warmup = 3;
  flags.num_iters = 10;
  add_common_flags(frame, flags);
  add_count(frame.flags(), "batch-size", "prompts that run together", flags.load.num_prompts);
  add_count(
      frame.flags(), "num-iters-warmup", "runs before the measured ones", flags.num_iters_warmup);
  add_count(frame.flags(), "num-iters", "measured runs", flags.num_iters);
  const auto begun = frame.begin(without_prefix_cache(arguments), {});
  if (!begun || *begun) {
    return begun.map([](const std::optional<ExitCode>& code) { return *code; });
  }
  const Result<std::vector<double>> measured = load_and_measure(frame, flags);
  if (!measured) {
    return tl::unexpected(measured.error());
  }
  const std::vector<double>& seconds = *measured;
  const double average =
      std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(seconds.size());
  const auto tokens = static_cast<double>(flags.load.num_prompts * flags.load.output_len);
  AnswerJson json;
  json["avg_latency"] = average;
  json["latencies"] = seconds;
  std::string text =
      fmt::format("avg latency {:.4f} s, {:.1f} output tokens/s", average, tokens / average);
  for (const int p : {10, 25, 50, 75, 90, 99}) {
    const double value = percentile(seconds, p);
    json["percentiles"][std::to_string(p)] = value;
    text += fmt::format("\np{} {:.4f} s", p, value);
  }
  return report(frame, flags, json, text);
}

Result<ExitCode> throughput(const Arguments& arguments) {
  CommandFrame frame("bench throughput",
                     "measures how fast many prompts are done, all submitted at once",
                     "MODEL [FLAGS]");
  BenchFlags flags;
  flags.load.num_prompts = 100;
  add_common_flags(frame, flags);
  add_count(frame.flags(), "num-prompts", "prompts", flags.load.num_prompts);
  const auto begun = frame.begin(without_prefix_cache(arguments), {});
  if (!begun || *begun) {
    return begun.map([](const std::optional<ExitCode>& code) { return *code; });
  }
  const Result<std::vector<double>> measured = load_and_measure(frame, flags);
  if (!measured) {
    return tl::unexpected(measured.error());
  }
  const double seconds = measured->front();
  const auto prompts = static_cast<double>(flags.load.num_prompts);
  const double total = prompts * static_cast<double>(flags.load.input_len + flags.load.output_len);
  const double output = prompts * static_cast<double>(flags.load.output_len);
  AnswerJson json;
  json["elapsed_time"] = seconds;
  json["num_requests"] = flags.load.num_prompts;
  json["total_num_tokens"] = static_cast<int64_t>(total);
  json["requests_per_second"] = prompts / seconds;
  json["tokens_per_second"] = total / seconds;
  return report(
      frame,
      flags,
      json,
      fmt::format("throughput: {:.2f} requests/s, {:.1f} total tokens/s, {:.1f} output tokens/s",
                  prompts / seconds,
                  total / seconds,
                  output / seconds));
}

}  // namespace

Result<ExitCode> run_bench(const Arguments& arguments) {
  const std::string kind = arguments.empty() ? "" : arguments.front();
  const Arguments rest(arguments.begin() + (arguments.empty() ? 0 : 1), arguments.end());
  if (kind == "latency") {
    return latency(rest);
  }
  if (kind == "throughput") {
    return throughput(rest);
  }
  if (kind == "-h" || kind == "--help") {
    fmt::print("usage: warprow bench latency|throughput MODEL [FLAGS]; each has its own --help\n");
    return ExitCode::kOk;
  }
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("bench: '{}' is none of latency|throughput", kind));
}

}  // namespace warprow
