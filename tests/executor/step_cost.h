// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "executor/executor.h"
#include "wire/model_runner_output.h"
#include "wire/scheduler_output.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include <gtest/gtest.h>

namespace warprow::test {

// The least microseconds that an empty step took: its way to the ranks and back, without a forward.
inline double empty_step_us(Executor& executor, int64_t num_steps) {
  using Clock = std::chrono::steady_clock;
  SchedulerOutput step;
  ModelRunnerOutput output;
  Clock::duration best = Clock::duration::max();
  for (step.step = 1; step.step <= num_steps; ++step.step) {
    const Clock::time_point begin = Clock::now();
    executor.execute_model(step);
    executor.sample_tokens(nullptr);
    executor.take_output(output);
    best = std::min(best, Clock::now() - begin);
  }
  EXPECT_EQ(output.step, num_steps);
  return std::chrono::duration<double, std::micro>(best).count();
}

}  // namespace warprow::test
