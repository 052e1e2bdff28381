// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "cli/answer.h"
#include "cli/bench/bench_run.h"
#include "cli/commands/command.h"
#include "cli/commands/command_frame.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace warprow {

// The common part of the bench commands: a CommandFrame with count flags and --output-json. Prefix caching is off by
// default, as in vLLM: repeated prompts would measure the cache.
//
// Thread: one.
class BenchFrame {
 public:
  BenchFrame(const char* name, const char* summary);

  // Adds a flag for a count, 0 to 1000000. The help text shows the default.
  void add_count(const char* name, const std::string& help, int64_t& target);
  // The same for a list of counts, separated by commas.
  void add_counts(const char* name, const std::string& help, std::vector<int64_t>& target);
  // --input-len and --output-len.
  void add_lengths(BenchLoad& load);
  // Adds the sampling flags, which apply to all prompts. --seed is then the requests' seed.
  void add_sampling(BenchLoad& load);

  // As CommandFrame::begin.
  Result<std::optional<ExitCode>> begin(const Arguments& arguments);
  [[nodiscard]] FlagSet& flags() { return frame_.flags(); }
  [[nodiscard]] const EngineConfig& config() const { return frame_.config(); }

  // Prints the result as JSON or text and writes it to --output-json.
  [[nodiscard]] Result<ExitCode> report(const AnswerJson& json, const std::string& text) const;

 private:
  CommandFrame frame_;
  SamplingOptions* sampling_ = nullptr;
  std::optional<std::string> output_json_;
};

// Fails unless all are at least 1.
Result<void> check_counts(const std::vector<int64_t>& counts, const char* names);

// {"10": ..., "25": ..., ...}: the percentiles that vLLM prints.
AnswerJson percentiles_json(const std::vector<double>& values);

// The graph counters between two readings of EngineStats or ExecutorStats. graphs_text writes them as one line of text,
// which is empty if graphs are off.
template <typename Stats>
AnswerJson graphs_json(const Stats& before, const Stats& after) {
  return {{"full", after.graphs_full - before.graphs_full},
          {"piecewise", after.graphs_piecewise - before.graphs_piecewise},
          {"eager", after.graphs_eager - before.graphs_eager},
          {"captures", after.graph_captures - before.graph_captures},
          {"evictions", after.graph_evictions - before.graph_evictions},
          {"padded_toks", after.padded_toks - before.padded_toks},
          {"bytes", after.graph_bytes}};
}
std::string graphs_text(const AnswerJson& graphs);

// The internal bench that `bench startup` starts as a child process; not for users.
inline constexpr const char* kStartupChild = "startup-child";

// The bench commands.
Result<ExitCode> run_bench_latency(const Arguments& arguments);
Result<ExitCode> run_bench_throughput(const Arguments& arguments);
Result<ExitCode> run_bench_startup(const Arguments& arguments);
Result<ExitCode> run_bench_startup_child(const Arguments& arguments);
Result<ExitCode> run_bench_serve(const Arguments& arguments);
Result<ExitCode> run_bench_step(const Arguments& arguments);
Result<ExitCode> run_bench_costs(const Arguments& arguments);

}  // namespace warprow
