// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/grammar_progress.h"
#include "engine/observe.h"
#include "executor/executor.h"
#include "sched/scheduler.h"

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

namespace warprow {

// The second phase of steps with grammar rows. While their forward runs, the previous step is taken and workers
// fill the masks; sample_tokens follows when the masks are ready. A late mask delays no other row: once the device
// is idle, the step is sampled without that row. Such a row is withheld: it yields no token, and runs again when
// its mask is ready.
//
// Owns: the state of the step between its two phases.
// Thread: the engine's.
class MaskedSampling {
 public:
  enum class Attempt : uint8_t {
    kDone,         // sample_tokens was called
    kNeedsOutput,  // take the previous step first: masks depend on its tokens, or it is done
    kWaited        // waited a moment for a mask; try again
  };

  // How long the device may wait for a mask before the step goes on without it.
  static constexpr std::chrono::microseconds kGrace{500};

  MaskedSampling(Executor& executor,
                 Scheduler& scheduler,
                 GrammarProgress& progress,
                 std::chrono::microseconds grace = kGrace);

  // Begins the first masks of a step's new rows, which may be filled while their prefill runs.
  void start_newcomers(const SchedulerOutput& step);
  // A step with grammar rows was executed and waits for its masks. It must live until kDone.
  void begin(const SchedulerOutput& step);
  [[nodiscard]] bool due() const { return step_ != nullptr; }
  Attempt attempt();
  // Ends the phase without masks, for steps whose results are not used.
  void give_up();

  // Resumes withheld rows whose masks are ready.
  void resume_held();
  [[nodiscard]] bool any_held() const { return !held_.empty(); }
  // Waits a moment for a mask.
  void wait() { progress_.wait(kMoment); }

  // Rows that missed a step because their masks were late.
  [[nodiscard]] int64_t num_withheld() const { return num_withheld_; }
  // Of the step that was submitted last.
  [[nodiscard]] std::span<const RowId> withheld_rows() const { return output_.withheld_rows; }
  // When the last step's forward was seen done; the epoch if that was not while it waited for masks.
  [[nodiscard]] EngineClock::time_point forward_done_at() const { return forward_done_at_; }

 private:
  // Short, since other events than masks may happen meanwhile.
  static constexpr std::chrono::microseconds kMoment{200};

  [[nodiscard]] bool others_wait(size_t num_busy) const;
  [[nodiscard]] bool forward_seen_done() const {
    return forward_done_at_ != EngineClock::time_point();
  }
  [[nodiscard]] bool grace_is_over();
  void submit();

  Executor& executor_;
  Scheduler& scheduler_;
  GrammarProgress& progress_;
  std::chrono::microseconds grace_;
  const SchedulerOutput* step_ = nullptr;
  EngineClock::time_point forward_done_at_;
  GrammarOutput output_;        // reused
  std::vector<uint64_t> held_;  // requests
  int64_t num_withheld_ = 0;
};

}  // namespace warprow
