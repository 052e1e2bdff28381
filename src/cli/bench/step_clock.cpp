// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/step_clock.h"

#include "executor/executor_wrapper.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

using Clock = std::chrono::steady_clock;

double to_us(Clock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

// Mean context length of the rows in a step.
double mean_context(const SchedulerOutput& step) {
  int64_t sum = 0;
  for (const ScheduledRow& row : step.scheduled) {
    sum += row.num_computed_tokens + row.num_tokens;
  }
  return static_cast<double>(sum) / static_cast<double>(step.scheduled.size());
}

class StepClock final : public ExecutorWrapper {
 public:
  StepClock(std::unique_ptr<Executor> inner, StepRecord& record)
      : ExecutorWrapper(std::move(inner)), record_(record) {
    record_.samples.reserve(static_cast<size_t>(record_.num_steps));
  }

  void execute_model(const SchedulerOutput& step) override {
    Clock::time_point begin = Clock::now();
    end_sample(begin);
    const bool steady = is_steady(step);
    num_steady_ = steady ? num_steady_ + 1 : 0;
    enter_phase();
    open_ = steady && sampling();
    begin = Clock::now();  // excludes the clock's own work
    inner().execute_model(step);
    current_ = {};
    current_.execute_us = to_us(Clock::now() - begin);
    current_.context_len = steady ? mean_context(step) : 0;
    current_.num_toks = step.total_num_tokens;
    begin_ = begin;
    ours_ = {};
  }

  void sample_tokens(const GrammarOutput* grammar) override {
    const Clock::time_point begin = Clock::now();
    inner().sample_tokens(grammar);
    current_.sample_us = to_us(Clock::now() - begin);
  }

  void take_output(ModelRunnerOutput& output) override {
    const Clock::time_point begin = Clock::now();
    inner().take_output(output);
    const Clock::time_point end = Clock::now();
    const int64_t waited = inner().stats().output_wait_ns;
    const double wait_us = 1e-3 * static_cast<double>(waited - std::exchange(waited_ns_, waited));
    current_.wait_us += wait_us;
    current_.take_us += to_us(end - begin) - wait_us;
    ours_ += Clock::now() - end;
  }

 private:
  // All rows decode, each with its drafts.
  [[nodiscard]] bool is_steady(const SchedulerOutput& step) const {
    return std::cmp_equal(step.scheduled.size(), record_.num_rows) &&
           std::ranges::all_of(step.scheduled, [](const ScheduledRow& row) {
             return row.num_tokens == 1 + row.num_drafts;
           });
  }
  [[nodiscard]] bool sampling() const {
    return num_steady_ > record_.num_warmup &&
           std::cmp_less(record_.samples.size(), record_.num_steps);
  }

  // The sample of a step ends when the next step begins.
  void end_sample(Clock::time_point now) {
    if (!std::exchange(open_, false)) {
      return;
    }
    current_.wall_us = to_us(now - begin_ - ours_);
    current_.plan_us = current_.wall_us - current_.execute_us - current_.sample_us -
                       current_.take_us - current_.wait_us;
    record_.samples.push_back(current_);
  }

  // Reads the counters before and after the samples, and then starts the device timing of the following steps.
  void enter_phase() {
    if (num_steady_ == record_.num_warmup + 1 && record_.samples.empty()) {
      record_.before = inner().stats();
    }
    if (!std::cmp_equal(record_.samples.size(), record_.num_steps)) {
      return;
    }
    if (timed_left_ < 0) {
      record_.after = inner().stats();
      inner().call(TimeSteps{record_.num_steps}).get();
      timed_left_ = record_.num_steps;
    } else if (timed_left_ > 0) {
      --timed_left_;
      if (timed_left_ == 0) {
        record_.device_times = inner().call(ReadStepTimes{}).get().front();
      }
    }
  }

  StepRecord& record_;
  int64_t num_steady_ = 0;  // consecutive steady steps, including the current step
  bool open_ = false;       // current_ is a sample
  StepSample current_;
  Clock::time_point begin_;
  Clock::duration ours_{};  // time since begin_ spent in this class, not in the engine
  int64_t waited_ns_ = 0;
  int32_t timed_left_ = -1;  // steps left to time on the device; -1: not begun, 0: done
};

}  // namespace

std::unique_ptr<Executor> make_step_clock(std::unique_ptr<Executor> inner, StepRecord& record) {
  return std::make_unique<StepClock>(std::move(inner), record);
}

}  // namespace warprow
