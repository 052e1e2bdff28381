// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/cost_clock.h"

#include "executor/executor_wrapper.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <utility>

namespace warprow {
namespace {

using Clock = std::chrono::steady_clock;

double us(Clock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

class CostClock final : public ExecutorWrapper {
 public:
  CostClock(std::unique_ptr<Executor> inner, TimedSteps& steps)
      : ExecutorWrapper(std::move(inner)), steps_(steps) {
    prefill_lens_.resize(static_cast<size_t>(model_facts().max_num_seqs));
  }

  void execute_model(const SchedulerOutput& step) override {
    for (const NewRow& row : step.new_rows) {
      prefill_lens_[static_cast<size_t>(index_of(row.row))] = row.prefill_len;
    }
    Flying flying;
    flying.begun = Clock::now();
    flying.load.num_toks = step.total_num_tokens;
    for (const ScheduledRow& row : step.scheduled) {
      add_row(flying.load, row, prefill_lens_[static_cast<size_t>(index_of(row.row))]);
    }
    flying_.push_back(flying);
    inner().execute_model(step);
  }

  void take_output(ModelRunnerOutput& output) override {
    inner().take_output(output);
    const Clock::time_point now = Clock::now();
    const Flying flying = flying_.front();
    flying_.pop_front();
    if (flying.load.num_toks > 0) {
      steps_.add({.load = flying.load, .us = us(now - std::max(flying.begun, last_))});
    }
    last_ = now;
  }

 private:
  struct Flying {
    StepLoad load;
    Clock::time_point begun;
  };

  TimedSteps& steps_;
  std::deque<Flying> flying_;
  std::vector<int32_t> prefill_lens_;  // [max_num_seqs]
  Clock::time_point last_ = Clock::now();
};

}  // namespace

void TimedSteps::add(const TimedStep& step) {
  const std::scoped_lock lock(mutex_);
  steps_.push_back(step);
}

std::vector<TimedStep> TimedSteps::take() {
  const std::scoped_lock lock(mutex_);
  return std::exchange(steps_, {});
}

std::unique_ptr<Executor> make_cost_clock(std::unique_ptr<Executor> inner, TimedSteps& steps) {
  return std::make_unique<CostClock>(std::move(inner), steps);
}

}  // namespace warprow
