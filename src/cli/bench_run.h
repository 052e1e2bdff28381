// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "engine/engine.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace warprow {

// Random prompts of one length that all generate the same number of tokens, EOS or not: the fixed
// load of the bench commands. Ids depend on the seed alone, so runs repeat.
struct BenchLoad {
  int64_t input_len = 32;
  int64_t output_len = 128;
  int64_t num_prompts = 8;
  uint64_t seed = 0;
};

// Runs a load on an engine and measures it.
//
// Owns: the requests. Thread: one.
class BenchRun {
 public:
  // Errors: a length that the engine cannot hold, as validate says.
  static Result<BenchRun> prepare(Engine& engine, const BenchLoad& load);

  // Submits all prompts at once and waits for the last token of the last one; seconds.
  [[nodiscard]] double run();

 private:
  BenchRun(Engine& engine, std::vector<ValidRequest> requests)
      : engine_(&engine), requests_(std::move(requests)) {}

  Engine* engine_;
  std::vector<ValidRequest> requests_;
};

// The p-th percentile (0 to 100) of values, linear between neighbours as numpy's default.
double percentile(std::vector<double> values, double p);

}  // namespace warprow
