// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "config/engine_config.h"
#include "engine/engine.h"
#include "engine/grammar_progress.h"
#include "engine/inbox.h"
#include "engine/masked_sampling.h"
#include "engine/observe.h"
#include "engine/output_batch.h"
#include "engine/output_queue.h"
#include "engine/sleep_state.h"
#include "executor/executor.h"
#include "sched/scheduler.h"

#include <mutex>
#include <vector>

namespace warprow {

// The engine thread's work: commands in, steps through scheduler and executor, deltas out. A tick
// applies what clients asked, then submits a step if one fits, else takes the oldest output;
// filling beats draining, so that the device always has the next step. A step with grammar rows is
// submitted in two ticks or more (masked_sampling.h).
//
// It waits in one place, Inbox::wake_up, which commands and masks notify and, where the executor can,
// outputs; MaskedSampling's timer waits there too. Where the executor cannot (one worker on this very
// thread) the loop waits for an output in take_output, when it has nothing else to submit. With nothing
// to do it runs steps without tokens as long as the executor asks for them (Executor::idle_step).
//
// Owns: the scheduler.
// Thread: run() is the engine thread's body; check, stats, progress and steps from any.
// Invariant: when run() returns no step is outstanding (unless the executor threw) and every
// request has an end.
class EngineLoop {
 public:
  EngineLoop(const EngineConfig& config, Executor& executor, Inbox& inbox, OutputQueue& outputs);

  // Runs until the inbox is closed, or until a failure, after which all requests end with kError.
  void run() noexcept;

  // Whether a request of this size can ever run here.
  [[nodiscard]] Result<void> check(int64_t prompt_len, int64_t max_tokens) const {
    return scheduler_.check(prompt_len, max_tokens);
  }
  [[nodiscard]] EngineStats stats() const;
  [[nodiscard]] const SleepState& sleep_state() const { return sleep_; }
  [[nodiscard]] EngineProgress progress() const { return progress_.read(); }
  [[nodiscard]] const StepLog& steps() const { return steps_; }
  [[nodiscard]] const MaskLog& mask_fills() const { return grammars_.fills(); }

  // Called on the engine thread only, as tasks.
  [[nodiscard]] std::vector<RequestStatus> list_requests() const {
    return scheduler_.list_requests();
  }
  Result<void> reset_prefix_cache();

 private:
  // When the request in a row was first seen running.
  struct RowStart {
    uint32_t generation = 0;
    EngineClock::time_point at;
  };

  bool tick();
  void begin_waiting();
  void rest();
  bool run_empty_step();
  void apply_commands();
  void add(Submission submission);
  void end_aborted(RequestId id, FinishReason reason, const char* error);
  void answer(SleepCall& call);
  [[nodiscard]] Result<std::vector<std::string>> sleep(int level);
  [[nodiscard]] Result<std::vector<std::string>> wake_up(const std::string& tags);
  void end_finished_grammars();
  bool submit_step();
  void advance_sampling();
  void await_output();
  void take_step();
  void forward_deltas(EngineClock::time_point now);
  void follow_grammar(const RequestDelta& delta);
  void log_step();
  void publish_stats();

  Executor& executor_;
  Inbox& inbox_;
  OutputQueue& outputs_;
  Scheduler scheduler_;
  SleepState sleep_;
  GrammarProgress grammars_;
  MaskedSampling sampling_;
  ProgressMark progress_;
  StepLog steps_;
  bool outputs_notify_ = false;  // the executor notifies inbox_.wake_up() of outputs

  // Reused by every step.
  Commands commands_;
  SchedulerOutput step_;
  SchedulerOutput empty_step_;
  EngineClock::time_point planned_;  // step_
  EngineClock::time_point launched_;
  ModelRunnerOutput output_;
  std::vector<RequestDelta> deltas_;
  std::vector<int32_t> finished_grammars_;
  OutputBatch batch_;
  std::vector<RowStart> row_starts_;  // [max_num_seqs]

  EngineStats stats_;  // the engine thread's own
  mutable std::mutex published_mutex_;
  EngineStats published_;
};

}  // namespace warprow
