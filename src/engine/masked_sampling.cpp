// SPDX-License-Identifier: Apache-2.0
#include "engine/masked_sampling.h"

#include "base/check.h"

#include <algorithm>
#include <span>

namespace warprow {

using State = GrammarProgress::State;

MaskedSampling::MaskedSampling(Executor& executor,
                               Scheduler& scheduler,
                               GrammarProgress& progress,
                               std::chrono::microseconds grace)
    : executor_(executor), scheduler_(scheduler), progress_(progress), grace_(grace) {}

void MaskedSampling::start_newcomers(const SchedulerOutput& step) {
  for (const NewRow& row : step.new_rows) {
    if (const int32_t place = scheduler_.grammar_of(row.row); place >= 0) {
      progress_.start(place);
    }
  }
}

void MaskedSampling::begin(const SchedulerOutput& step) {
  step_ = &step;
  forward_done_at_ = {};
}

MaskedSampling::Attempt MaskedSampling::attempt() {
  size_t num_stale = 0;
  size_t num_busy = 0;
  for (const RowId row : step_->grammar_rows) {
    if (const int32_t place = scheduler_.grammar_of(row); place >= 0) {
      const State state = progress_.state(place);
      num_stale += state == State::kStale ? 1 : 0;
      num_busy += state == State::kBusy ? 1 : 0;
    }
  }
  if (num_stale > 0) {
    WR_CHECK_GT(executor_.num_outstanding(), 0);
    return Attempt::kNeedsOutput;
  }
  if (num_busy == 0 || (scheduler_.may_withhold() && grace_is_over() && others_wait(num_busy))) {
    submit();
    return Attempt::kDone;
  }
  if (executor_.output_ready()) {
    return Attempt::kNeedsOutput;
  }
  progress_.wait(kMoment);
  return Attempt::kWaited;
}

// Whether any request could advance if the step were over: rows of the step that need no mask or have one, waiting
// requests, rows withheld before whose masks are ready now.
bool MaskedSampling::others_wait(size_t num_busy) const {
  if (num_busy < step_->scheduled.size()) {
    return true;
  }
  const SchedulerStats stats = scheduler_.stats();
  if (stats.num_waiting > 0 && stats.num_running < scheduler_.config().max_num_seqs) {
    return true;
  }
  return std::any_of(
      held_.begin(), held_.end(), [this](uint64_t request) { return !progress_.is_busy(request); });
}

bool MaskedSampling::grace_is_over() {
  const EngineClock::time_point now = EngineClock::now();
  if (!forward_seen_done() && executor_.forward_done()) {
    forward_done_at_ = now;
  }
  return forward_seen_done() && now - forward_done_at_ >= grace_;
}

// Rows of requests that ended meanwhile stay unmasked: their tokens are dropped.
void MaskedSampling::submit() {
  output_.clear();
  auto scheduled = step_->scheduled.begin();
  for (const RowId row : step_->grammar_rows) {
    while (scheduled->row != row) {  // both are in one order
      ++scheduled;
    }
    const int32_t place = scheduler_.grammar_of(row);
    if (place < 0) {
      continue;
    }
    const State state = progress_.state(place);
    switch (state) {
      case State::kReady: {
        const std::span<const uint32_t> masks =
            progress_.use_masks(place, scheduled->num_logits, step_->step);
        if (!masks.empty()) {
          output_.masked_rows.push_back(
              {row, static_cast<int32_t>(std::ssize(masks) / progress_.num_words())});
          output_.bitmask.insert(output_.bitmask.end(), masks.begin(), masks.end());
        }
        break;
      }
      case State::kWaiting:
      case State::kStale:
        WR_CHECK(false, "row {} samples without a mask of its own", index_of(row));
      case State::kBusy:
      case State::kEnded:  // after the engine's last check; the request ends before the next step
      case State::kFailed:
      case State::kStuck:
        output_.withheld_rows.push_back(row);
        scheduler_.withhold(row);
        held_.push_back(progress_.request_of(place));
        num_withheld_ += state == State::kBusy ? 1 : 0;  // the others' requests end
        break;
    }
  }
  executor_.sample_tokens(&output_);
  step_ = nullptr;
}

void MaskedSampling::give_up() {
  executor_.sample_tokens(nullptr);
  step_ = nullptr;
}

void MaskedSampling::resume_held() {
  std::erase_if(held_, [this](uint64_t request) {
    if (progress_.is_busy(request)) {
      return false;
    }
    scheduler_.resume(request);
    return true;
  });
}

}  // namespace warprow
