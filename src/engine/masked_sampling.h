// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/grammar_progress.h"
#include "engine/observe.h"
#include "executor/executor.h"
#include "sched/scheduler.h"

#include <chrono>
#include <cstdint>
#include <vector>

namespace warprow {

// The second phase of steps with grammar rows. Their forward runs while the step before is taken and
// workers fill the masks; sample_tokens follows when the masks are there. A row whose mask is late
// holds nobody up: once the device waits, the step goes on without it. Such a row is withheld: it
// yields no token, and runs again when its mask is there.
//
// Owns: what is known of the step between its two phases.
// Thread: the engine's.
class MaskedSampling {
 public:
  enum class Attempt : uint8_t {
    kDone,         // sample_tokens was called
    kNeedsOutput,  // the step before is to be taken first: masks depend on its tokens, or it is done
    kWaited        // for a mask, a moment; try again
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
  // Ends the phase without masks, for steps whose results nobody wants.
  void give_up();

  // Lets the scheduler have withheld rows again whose masks are there.
  void resume_held();
  [[nodiscard]] bool any_held() const { return !held_.empty(); }
  // Waits for a mask, a moment.
  void wait() { progress_.wait(kMoment); }

  [[nodiscard]] int64_t num_withheld() const { return num_withheld_; }
  // When the last step's forward was seen to be done; the epoch: not while it waited for masks.
  [[nodiscard]] EngineClock::time_point forward_done_at() const { return forward_done_at_; }

 private:
  // Not longer, since other things than masks may happen meanwhile.
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
