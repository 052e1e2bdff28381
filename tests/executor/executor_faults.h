// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "executor/make_executor.h"
#include "wire/model_runner_output.h"
#include "wire/scheduler_output.h"

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>

// How executors with ranks fail.
namespace warprow::test {

// A step of padding alone: a whole forward, with its collectives.
inline void run_empty_step(Executor& executor, int64_t number) {
  SchedulerOutput step;
  step.step = number;
  step.data_parallel.num_toks_padded = 8;
  executor.execute_model(step);
  executor.sample_tokens(nullptr);
}

// What the executor says when it has failed, and how long it took to.
inline std::string failure_of(Executor& executor, std::chrono::steady_clock::duration& took) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  std::string why;
  ModelRunnerOutput output;
  for (int64_t step = 1; why.empty() && Clock::now() - begin < std::chrono::seconds(20); ++step) {
    try {
      run_empty_step(executor, step);
      executor.take_output(output);
    } catch (const std::runtime_error& error) {
      why = error.what();
    }
  }
  took = Clock::now() - begin;
  return why;
}

// What the executor says when it cannot start.
inline StartupError start_error_of(const EngineConfig& config) {
  try {
    make_executor(config);
  } catch (const StartupError& error) {
    return error;
  }
  return {ErrorCode::kInternal, "no error"};
}

// Makes a rank of this test's executors fail; see tests/support/rank_process.cpp.
class ScopedFault {
 public:
  ScopedFault(const std::string& fault, int32_t rank) {
    ::setenv("WR_RANK_FAULT", (fault + " " + std::to_string(rank)).c_str(), 1);
  }
  ~ScopedFault() { ::unsetenv("WR_RANK_FAULT"); }
  ScopedFault(const ScopedFault&) = delete;
  ScopedFault& operator=(const ScopedFault&) = delete;
};

}  // namespace warprow::test
