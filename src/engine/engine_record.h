// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/engine.h"
#include "engine/observe.h"
#include "engine/structured_requests.h"
#include "executor/executor.h"
#include "sched/scheduler.h"

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

namespace warprow {

// What the engine thread did: its phase, the newest steps, the counters. Hooks that the engine loop calls.
//
// Thread: hooks are the engine's; stats, progress and steps any.
class EngineRecord {
 public:
  EngineRecord(const Scheduler& scheduler,
               const Executor& executor,
               const StructuredRequests& structured);

  void enter(EnginePhase phase) { progress_.enter(phase); }
  // Nothing runs: no request does, or no step may.
  void enter_rest(bool paused) { enter(paused ? EnginePhase::kAsleep : EnginePhase::kIdle); }
  void stop(const std::string& failure) { progress_.stop(failure); }

  void count_prompt(size_t num_toks) { prompt_toks_ += static_cast<int64_t>(num_toks); }
  void count_outputs(int64_t num_toks) { output_toks_ += num_toks; }

  // A step, in this order: its planning begins; it is planned, and its launch begins; it is handed over whole; its
  // output is awaited; it is there. The last three are those of the oldest step.
  void plan();
  EngineClock::time_point launch(const SchedulerOutput& step);
  void hand_over(const SchedulerOutput& step);
  void await_output();
  EngineClock::time_point deliver(const StepStats& stats);

  // Makes the counters visible to other threads. The one place that copies them.
  void publish();

  [[nodiscard]] EngineStats stats() const;
  [[nodiscard]] std::vector<RankStatus> ranks() const { return executor_.ranks(); }
  [[nodiscard]] EngineProgress progress() const { return progress_.read(); }
  [[nodiscard]] const StepLog& steps() const { return steps_; }

 private:
  const Scheduler& scheduler_;
  const Executor& executor_;
  const StructuredRequests& structured_;
  ProgressMark progress_;
  StepLog steps_;
  EngineClock::time_point planned_;  // of the step that is planned or launched
  EngineClock::time_point launched_;
  EngineClock::time_point awaited_;
  int64_t num_steps_ = 0;
  int64_t prompt_toks_ = 0;
  int64_t output_toks_ = 0;

  mutable std::mutex mutex_;
  EngineStats published_;  // under mutex_
};

}  // namespace warprow
