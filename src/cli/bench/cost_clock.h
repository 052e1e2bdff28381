// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/simulate/cost_table.h"
#include "executor/executor.h"

#include <memory>
#include <mutex>
#include <vector>

namespace warprow {

// The load of a step and its time: from its submission, or from the end of the step before if that came later, until its
// output was there.
struct TimedStep {
  StepLoad load;
  double us = 0;
};

// The steps of the engine since the last take().
//
// Thread: any.
class TimedSteps {
 public:
  void add(const TimedStep& step);
  std::vector<TimedStep> take();

 private:
  std::mutex mutex_;
  std::vector<TimedStep> steps_;
};

// An executor that forwards all calls to `inner` and adds each step with tokens to `steps`, which must outlive it.
std::unique_ptr<Executor> make_cost_clock(std::unique_ptr<Executor> inner, TimedSteps& steps);

}  // namespace warprow
