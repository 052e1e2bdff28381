// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_loop.h"

#include "base/check.h"
#include "base/log.h"
#include "engine/validate.h"

#include <chrono>
#include <exception>
#include <optional>
#include <utility>

namespace warprow {
namespace {

double microseconds_of(EngineClock::time_point time) {
  return std::chrono::duration<double, std::micro>(time.time_since_epoch()).count();
}

}  // namespace

EngineLoop::EngineLoop(const EngineConfig& config,
                       const SchedulerConfig& scheduler,
                       double target_step_us,
                       Executor& executor,
                       Inbox& inbox,
                       OutputQueue& outputs)
    : executor_(executor),
      inbox_(inbox),
      scheduler_(scheduler),
      prefill_budget_(target_step_us, scheduler.max_concurrent_steps),
      structured_(config, executor, scheduler_),
      requests_(static_cast<size_t>(scheduler.max_num_seqs)),
      delivery_(outputs, static_cast<size_t>(scheduler.max_num_seqs), requests_),
      record_(scheduler_, executor, structured_),
      intake_(scheduler_, structured_, delivery_, record_, requests_) {
  const auto max_rows = static_cast<size_t>(scheduler.max_num_seqs);
  scheduler_.reserve(step_);
  output_.reserve(max_rows, static_cast<size_t>(executor.model_facts().max_drafts), kMaxLogprobs);
  deltas_.reserve(max_rows);
}

void EngineLoop::run() noexcept {
  EngineEnd end{FinishReason::kAbort, ""};
  try {
    begin_waiting();
    while (tick()) {
    }
    if (structured_.due()) {
      structured_.give_up();
    }
    while (executor_.num_outstanding() > 0) {
      executor_.take_output(output_);
    }
  } catch (const CheckFailure& failure) {
    end = {FinishReason::kError, failure.message};
  } catch (const std::exception& exception) {
    end = {FinishReason::kError, exception.what()};
  }
  if (end.reason == FinishReason::kError) {
    WR_LOG_ERROR("the engine stops: {}", end.error);
  }
  executor_.set_wake_up(nullptr);
  record_.stop(end.error);
  inbox_.close();  // before the end: the output thread then ends later submissions
  inbox_.take(commands_);
  commands_.clear();  // callers that wait for a task get an error now
  delivery_.close(std::move(end));
}

// On the engine's thread.
void EngineLoop::begin_waiting() {
  executor_.enter_thread();
  structured_.share_wake_up(inbox_.wake_up());
  outputs_notify_ = executor_.set_wake_up(&inbox_.wake_up());
}

bool EngineLoop::tick() {
  const bool idle =
      paused_ || (!structured_.due() && !scheduler_.has_work() && executor_.num_outstanding() == 0);
  if (idle) {
    record_.enter_rest(paused_);
  }
  inbox_.take(commands_);
  if (idle) {
    rest();
  }
  if (commands_.closed) {
    return false;
  }
  intake_.apply(commands_);
  if (structured_.due()) {
    advance_sampling();
    return true;
  }
  if (paused_ || submit_step()) {
    return true;
  }
  if (executor_.num_outstanding() > 0) {
    await_output();
  } else if (structured_.any_held()) {
    structured_.wait();
  } else {
    WR_CHECK(!scheduler_.has_work(), "requests wait, none can run and nothing is in flight");
  }
  return true;
}

// Waits until there is a command.
void EngineLoop::rest() {
  while (commands_.empty()) {
    if (!run_empty_step()) {
      inbox_.wake_up().wait();
    }
    inbox_.take(commands_);
  }
}

// Only if the executor asks for one. It carries the number of the scheduler's last step.
bool EngineLoop::run_empty_step() {
  const std::optional<DataParallelShape> shape = executor_.idle_step();
  if (!shape || paused_) {
    return false;
  }
  empty_step_.step = step_.step;
  empty_step_.data_parallel = *shape;
  record_.enter(EnginePhase::kDevice);
  executor_.execute_model(empty_step_);
  executor_.sample_tokens(nullptr);
  executor_.take_output(output_);
  WR_CHECK(output_.rows.empty());
  record_.enter_rest(paused_);
  return true;
}

bool EngineLoop::submit_step() {
  structured_.end_finished(delivery_);
  structured_.resume_held();
  record_.plan();
  if (!scheduler_.schedule(step_, prefill_budget_.max_toks())) {
    return false;
  }
  const EngineClock::time_point launched = record_.launch(step_);
  prefill_budget_.launch(step_, microseconds_of(launched));
  requests_.plan(step_, launched, [this](RowId row) { return scheduler_.request_of(row); });
  delivery_.begin_rows(step_, launched);
  structured_.begin_rows(step_);
  executor_.execute_model(step_);
  if (structured_.begin_sampling(step_)) {
    advance_sampling();
  } else {
    executor_.sample_tokens(nullptr);
    record_.hand_over(step_);
  }
  return true;
}

// Advances sampling as far as the step's masks are ready.
void EngineLoop::advance_sampling() {
  structured_.end_finished(delivery_);
  record_.enter(EnginePhase::kLaunching);
  switch (structured_.attempt()) {
    case MaskedSampling::Attempt::kDone:
      requests_.hold(structured_.withheld());
      record_.hand_over(step_);
      break;
    case MaskedSampling::Attempt::kNeedsOutput:
      take_step();
      break;
    case MaskedSampling::Attempt::kWaited:
      break;
  }
}

// Takes the oldest step's output if it is ready or the executor cannot notify. Otherwise waits for any wake-up, so
// that commands are applied first.
void EngineLoop::await_output() {
  if (!outputs_notify_ || executor_.output_ready()) {
    take_step();
    return;
  }
  record_.enter(EnginePhase::kDevice);
  inbox_.wake_up().wait();
}

void EngineLoop::take_step() {
  record_.await_output();
  executor_.take_output(output_);
  const EngineClock::time_point done = record_.deliver(output_.stats);
  prefill_budget_.finish(microseconds_of(done));
  scheduler_.update_from_output(output_, deltas_);
  requests_.take(output_.step, deltas_, done);
  structured_.follow(deltas_, output_);
  record_.count_outputs(delivery_.add(deltas_, output_, done));
  record_.publish();  // first: a client that sees its request end finds its steps counted
  delivery_.publish();
}

void EngineLoop::end_all() {
  intake_.abort_all();
  if (structured_.due()) {
    structured_.give_up();
    record_.hand_over(step_);
  }
  // Take the steps in flight, and run one that reports released rows to the workers.
  while (submit_step() || executor_.num_outstanding() > 0) {
    if (executor_.num_outstanding() > 0) {
      take_step();
    }
  }
}

void EngineLoop::settle() {
  while (structured_.due()) {
    advance_sampling();
  }
  while (executor_.num_outstanding() > 0) {
    take_step();
  }
}

void EngineLoop::pause(const char* refusal) {
  paused_ = true;
  intake_.refuse_with(refusal);
}

void EngineLoop::resume() {
  paused_ = false;
  intake_.refuse_with(nullptr);
}

}  // namespace warprow
