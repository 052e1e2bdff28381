// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "engine/engine.h"

#include <cstdint>
#include <random>
#include <vector>

namespace warprow {

// The fixed load of the bench commands: random prompts of one length. All generate the same number of tokens and ignore
// EOS.
struct BenchLoad {
  int64_t input_len = 32;
  int64_t output_len = 128;
  int64_t num_prompts = 8;
  SamplingOptions
      sampling{};  // greedy unless it has a temperature; output_len stands for max_tokens
};

// Runs a load on an engine repeatedly and measures it. Each run has new token ids, so that no run finds the prompts of
// another in a cache. The ids are the same in every process.
//
// Thread: one.
class BenchRun {
 public:
  BenchRun(Engine& engine, BenchLoad load) : engine_(&engine), load_(std::move(load)) {}

  // Submits all prompts at once and waits for the last token of all. Returns seconds. Errors: validate refuses the
  // load; a request fails.
  [[nodiscard]] Result<double> run() { return run(load_.output_len); }
  // The same load with another output length.
  [[nodiscard]] Result<double> run(int64_t output_len);

 private:
  [[nodiscard]] Result<std::vector<ValidRequest>> draw_requests(int64_t output_len);

  Engine* engine_;
  BenchLoad load_;
  std::mt19937_64 random_{0};  // NOLINT(bugprone-random-generator-seed): runs are reproducible
};

// The p-th percentile (0 to 100) of values, with linear interpolation as numpy's default.
double percentile(std::vector<double> values, double p);
double mean(const std::vector<double>& values);

}  // namespace warprow
