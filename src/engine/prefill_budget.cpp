// SPDX-License-Identifier: Apache-2.0
#include "engine/prefill_budget.h"

#include "base/check.h"
#include "sched/scheduler.h"

#include <algorithm>

namespace warprow {
namespace {

// The decoding rows count for at most this share of a step with prompt tokens: their median may be out of date, and
// prompt tokens always cost some time.
constexpr double kMaxDecodePart = 0.75;
constexpr double kMostToks = 1 << 24;

}  // namespace

void PrefillBudget::RecentMedian::add(double value) {
  values_[count_ % values_.size()] = value;
  ++count_;
}

double PrefillBudget::RecentMedian::value() const {
  if (count_ == 0) {
    return 0;
  }
  std::array<double, 5> sorted = values_;
  const size_t num_values = std::min(count_, sorted.size());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(num_values / 2);
  std::nth_element(
      sorted.begin(), middle, sorted.begin() + static_cast<std::ptrdiff_t>(num_values));
  return *middle;
}

PrefillBudget::PrefillBudget(double target_us, int32_t max_steps)
    : target_us_(target_us), flying_(static_cast<size_t>(max_steps)) {
  WR_CHECK_GE(max_steps, 1);
}

void PrefillBudget::launch(const SchedulerOutput& step, double now_us) {
  WR_CHECK_LT(num_launched_ - num_finished_, flying_.size());
  Flying flying{.launched_us = now_us, .num_toks = step.total_num_tokens};
  for (const ScheduledRow& row : step.scheduled) {
    const bool is_prefill = row.num_tokens > 1 + row.num_drafts;
    flying.num_prefill_toks += is_prefill ? row.num_tokens : 0;
    flying.has_decodes = flying.has_decodes || !is_prefill;
  }
  flying_[num_launched_++ % flying_.size()] = flying;
}

void PrefillBudget::finish(double now_us) {
  WR_CHECK_LT(num_finished_, num_launched_);
  const Flying done = flying_[num_finished_++ % flying_.size()];
  const double step_us = now_us - std::max(done.launched_us, last_end_us_);
  last_end_us_ = now_us;
  if (done.num_toks == 0) {
    return;
  }
  if (done.num_prefill_toks == 0) {
    decode_us_.add(step_us);
  } else if (done.num_prefill_toks >= kMinMixedPrefill) {  // fewer are mostly the cost of any step
    const double decode_us =
        done.has_decodes ? std::min(decode_us_.value(), kMaxDecodePart * step_us) : 0;
    prefill_tok_us_.add((step_us - decode_us) / done.num_prefill_toks);
  }
}

int32_t PrefillBudget::max_toks() const {
  if (target_us_ <= 0) {
    return 0;
  }
  const double tok_us = prefill_tok_us_.value();
  if (tok_us <= 0) {
    return 1;
  }
  return static_cast<int32_t>(
      std::clamp((target_us_ - decode_us_.value()) / tok_us, 1.0, kMostToks));
}

}  // namespace warprow
