// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "cli/answer.h"
#include "cli/bench_run.h"
#include "cli/command.h"
#include "cli/command_frame.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace warprow {

// What the bench commands share: a CommandFrame with counts as flags, --output-json, and prefix
// caching off unless asked for (as in vLLM: repeated prompts would measure the cache).
//
// Thread: one.
class BenchFrame {
 public:
  BenchFrame(const char* name, const char* summary);

  // A flag with a number of things, 0 to 1000000; its help shows the default.
  void add_count(const char* name, const std::string& help, int64_t& target);
  // The same for several, divided by commas.
  void add_counts(const char* name, const std::string& help, std::vector<int64_t>& target);
  // --input-len and --output-len.
  void add_lengths(BenchLoad& load);
  // The sampling of all prompts; its --seed is theirs.
  void add_sampling(BenchLoad& load);

  // As CommandFrame::begin.
  Result<std::optional<ExitCode>> begin(const Arguments& arguments);
  [[nodiscard]] FlagSet& flags() { return frame_.flags(); }
  [[nodiscard]] const EngineConfig& config() const { return frame_.config(); }

  // Prints the result as asked and writes it to --output-json.
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

// How steps ran between two readings of EngineStats or ExecutorStats; as one line of text, empty where
// no graph was wanted.
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

// The kind that `bench startup` starts as a child; not for people.
inline constexpr const char* kStartupChild = "startup-child";

// The benches.
Result<ExitCode> run_bench_latency(const Arguments& arguments);
Result<ExitCode> run_bench_throughput(const Arguments& arguments);
Result<ExitCode> run_bench_startup(const Arguments& arguments);
Result<ExitCode> run_bench_startup_child(const Arguments& arguments);
Result<ExitCode> run_bench_serve(const Arguments& arguments);
Result<ExitCode> run_bench_step(const Arguments& arguments);

}  // namespace warprow
