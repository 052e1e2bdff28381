// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/wake_up.h"
#include "config/engine_config.h"
#include "engine/delivery.h"
#include "engine/grammar_progress.h"
#include "engine/inbox.h"
#include "engine/masked_sampling.h"
#include "executor/executor.h"
#include "sched/scheduler.h"

#include <cstdint>
#include <span>
#include <vector>

namespace warprow {

// The requests with structured output: hooks that the engine loop calls, so that it needs to know no grammar.
//
// Owns: the grammars' states and the masked sampling of the step under way.
// Thread: the engine's; stats and fills from any.
class StructuredRequests {
 public:
  StructuredRequests(const EngineConfig& config, Executor& executor, Scheduler& scheduler);

  // Where it waits; before the first request.
  void share_wake_up(WakeUp& wake_up) { grammars_.share_wake_up(wake_up); }

  // A request on its way to the scheduler. Without a grammar nothing happens.
  void add(Submission& submission);
  // A request has ended.
  void remove(RequestId id) { grammars_.remove_request(id); }
  // Ends requests whose grammar is complete, failed, or has no allowed token.
  void end_finished(Delivery& delivery);
  // What a step yielded: the grammars of its requests go on.
  void follow(std::span<const RequestDelta> deltas, const ModelRunnerOutput& output);

  // Before a step is planned: withheld rows whose masks are ready may run again.
  void resume_held() { sampling_.resume_held(); }
  // Before a step is executed.
  void begin_rows(const SchedulerOutput& step) { sampling_.start_newcomers(step); }
  // After it was executed. Whether its sampling has to wait for masks; it is then due until attempt() returns kDone.
  bool begin_sampling(const SchedulerOutput& step);
  [[nodiscard]] bool due() const { return sampling_.due(); }
  MaskedSampling::Attempt attempt() { return sampling_.attempt(); }
  // Samples without masks, for steps whose results are not used.
  void give_up() { sampling_.give_up(); }
  [[nodiscard]] bool any_held() const { return sampling_.any_held(); }
  // Waits a moment for a mask.
  void wait() { sampling_.wait(); }

  [[nodiscard]] GrammarProgress::Stats stats() const { return grammars_.stats(); }
  [[nodiscard]] int64_t num_withheld() const { return sampling_.num_withheld(); }
  [[nodiscard]] std::span<const RowId> withheld() const { return sampling_.withheld_rows(); }
  [[nodiscard]] EngineClock::time_point forward_done_at() const {
    return sampling_.forward_done_at();
  }
  [[nodiscard]] const MaskLog& fills() const { return grammars_.fills(); }

 private:
  Scheduler& scheduler_;
  GrammarProgress grammars_;
  MaskedSampling sampling_;
  std::vector<int32_t> finished_;  // reused
};

}  // namespace warprow
