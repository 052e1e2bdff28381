// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "wire/scheduler_output.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace warprow {

// How many prompt tokens a step may take beside its decoding rows so that it is expected to last a given time. The
// expectation is a sum: what steps of decoding rows alone took, and a time for each prompt token, both medians of the
// newest steps that ended. If every step has prompts, the first is out of date. The second then absorbs the difference,
// for steps of the current size.
//
// A step's time is from its launch, or from the end of the step before if that is later, to its end. The clock is the
// caller's, so that `warprow simulate` uses this too.
//
// Thread: one. Allocates nothing after construction.
class PrefillBudget {
 public:
  // target_us: 0: no limit. max_steps: launched and not finished at once.
  PrefillBudget(double target_us, int32_t max_steps);

  // For every step, in order, those without tokens too.
  void launch(const SchedulerOutput& step, double now_us);
  // The oldest step that was launched has ended.
  void finish(double now_us);

  // For Scheduler::schedule: at least 1, the least while no step with prompt tokens has ended; 0: no limit.
  [[nodiscard]] int32_t max_toks() const;

 private:
  // The median of the newest values: few, so that it follows the load; several, so that one slow step does not count.
  class RecentMedian {
   public:
    void add(double value);
    [[nodiscard]] double value() const;  // 0 if it is empty

   private:
    std::array<double, 5> values_{};
    size_t count_ = 0;  // added so far
  };
  struct Flying {
    double launched_us = 0;
    int32_t num_toks = 0;
    int32_t num_prefill_toks = 0;
    bool has_decodes = false;
  };

  double target_us_;
  std::vector<Flying> flying_;  // [max_steps] a ring
  size_t num_launched_ = 0;
  size_t num_finished_ = 0;
  double last_end_us_ = 0;
  RecentMedian decode_us_;  // of a step without prompts
  RecentMedian prefill_tok_us_;
};

}  // namespace warprow
