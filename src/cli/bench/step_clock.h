// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "executor/executor.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace warprow {

// The parts of the engine thread's time between two submissions of a step, in microseconds. The host time is all of it
// except wait_us.
struct StepSample {
  double wall_us = 0;
  double execute_us = 0;   // execute_model
  double sample_us = 0;    // sample_tokens
  double take_us = 0;      // take_output, without waiting
  double plan_us = 0;      // the rest: scheduling, updating requests, delivering tokens
  double wait_us = 0;      // for the device
  double context_len = 0;  // mean over the rows
  double num_toks = 0;     // of the step: one a row, and its drafts
  [[nodiscard]] double host_us() const { return execute_us + sample_us + take_us + plan_us; }
};

// The options and results of a measurement. Device timing costs host time, so there are two successive runs of
// num_steps steps: the first for samples, the second for device_times.
struct StepRecord {
  int32_t num_rows = 1;
  int32_t num_warmup = 32;
  int32_t num_steps = 128;

  std::vector<StepSample> samples{};
  std::string device_times{};  // JSON [[begin, end], ...], from Worker's step_times
  ExecutorStats before{};      // counters before and after the samples
  ExecutorStats after{};
};

// An executor that forwards all calls to `inner` and fills `record` from the steps in which num_rows rows decode one
// token each, and the drafts behind it. The record is complete after the engine is destroyed.
std::unique_ptr<Executor> make_step_clock(std::unique_ptr<Executor> inner, StepRecord& record);

}  // namespace warprow
