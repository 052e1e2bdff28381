// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "config/engine_config.h"
#include "engine/delivery.h"
#include "engine/engine_record.h"
#include "engine/inbox.h"
#include "engine/intake.h"
#include "engine/output_queue.h"
#include "engine/prefill_budget.h"
#include "engine/request_log.h"
#include "engine/structured_requests.h"
#include "executor/executor.h"
#include "sched/scheduler.h"

#include <vector>

namespace warprow {

// The engine thread's work: commands in, steps through scheduler and executor, outputs out. A tick
// applies what clients asked, then submits a step if one fits, else takes the oldest output;
// filling beats draining, so that the device always has the next step. A step whose sampling waits for
// masks is submitted in two ticks or more (masked_sampling.h).
//
// It waits in one place, Inbox::wake_up, which commands and masks notify and, where the executor can,
// outputs; the timer of masks waits there too. Where the executor cannot (one worker on this very
// thread) the loop waits for an output in take_output, when it has nothing else to submit. With nothing
// to do it runs steps without tokens as long as the executor asks for them (Executor::idle_step).
//
// Other concerns are objects whose hooks the loop calls: Intake (commands), StructuredRequests, EngineRecord, Delivery.
// EngineControl does what a caller asks for between two steps.
//
// Owns: the scheduler.
// Thread: run() is the engine thread's body; check, record, requests and mask_fills from any.
// Invariant: when run() returns no step is outstanding (unless the executor threw) and every
// request has an end.
class EngineLoop {
 public:
  // target_step_us: as in scheduler_settings.h.
  EngineLoop(const EngineConfig& config,
             const SchedulerConfig& scheduler,
             double target_step_us,
             Executor& executor,
             Inbox& inbox,
             OutputQueue& outputs);

  // Runs until the inbox is closed, or until a failure, after which all requests end with kError.
  void run() noexcept;

  // Whether a request of this size can ever run here.
  [[nodiscard]] Result<void> check(int64_t prompt_len, int64_t max_tokens) const {
    return scheduler_.check(prompt_len, max_tokens);
  }
  [[nodiscard]] const EngineRecord& record() const { return record_; }
  [[nodiscard]] const RequestLog& requests() const { return requests_; }
  [[nodiscard]] const MaskLog& mask_fills() const { return structured_.fills(); }

  // For tasks, on the engine thread:
  [[nodiscard]] Scheduler& scheduler() { return scheduler_; }
  // Ends every request with kAbort and takes every step in flight. The workers know of the released rows then.
  void end_all();
  // Completes the steps in flight; their requests keep their places.
  void settle();
  // No step runs until resume(). Requests wait, or with `refusal`, a literal, end with that error.
  void pause(const char* refusal);
  void resume();
  // New requests wait outside the scheduler until they are let in.
  void hold_back() { intake_.hold_back(); }
  void let_in() { intake_.let_in(); }

 private:
  bool tick();
  void begin_waiting();
  void rest();
  bool run_empty_step();
  bool submit_step();
  void advance_sampling();
  void await_output();
  void take_step();

  Executor& executor_;
  Inbox& inbox_;
  Scheduler scheduler_;
  PrefillBudget prefill_budget_;
  StructuredRequests structured_;
  RequestLog requests_;
  Delivery delivery_;
  EngineRecord record_;
  Intake intake_;
  bool outputs_notify_ = false;  // the executor notifies inbox_.wake_up() of outputs
  bool paused_ = false;

  // Reused by every step.
  Commands commands_;
  SchedulerOutput step_;
  SchedulerOutput empty_step_;
  ModelRunnerOutput output_;
  std::vector<RequestDelta> deltas_;
};

}  // namespace warprow
