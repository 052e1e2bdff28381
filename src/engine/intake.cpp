// SPDX-License-Identifier: Apache-2.0
#include "engine/intake.h"

#include "base/check.h"

#include <algorithm>
#include <utility>

namespace warprow {

void Intake::apply(Commands& commands) {
  if (commands.empty()) {
    return;
  }
  record_.enter(EnginePhase::kCommand);
  for (Submission& submission : commands.submissions) {
    if (holds_back_) {
      held_back_.push_back(std::move(submission));
    } else {
      add(submission);
    }
  }
  for (const RequestId id : commands.aborts) {
    // Unknown: it has ended, and its final update is on its way.
    if (!abort_held_back(id) && scheduler_.abort_request(id)) {
      end_aborted(id);
    }
  }
  for (const RequestId id : commands.stopped) {
    if (scheduler_.finish_request(id)) {
      requests_.end(id, FinishReason::kStop);
    }
    structured_.remove(id);
  }
  record_.publish();
  for (const Task& task : commands.tasks) {
    task();
  }
  if (!commands.tasks.empty()) {
    record_.publish();
  }
  delivery_.publish();
}

void Intake::let_in() {
  holds_back_ = false;
  for (Submission& submission : held_back_) {
    add(submission);
  }
  held_back_.clear();
}

void Intake::abort_all() {
  for (const Submission& submission : held_back_) {
    delivery_.end(submission.request.id, FinishReason::kAbort);
  }
  held_back_.clear();
  for (const RequestId id : scheduler_.abort_all()) {
    end_aborted(id);
  }
  delivery_.publish();
}

void Intake::add(Submission& submission) {
  Request& request = submission.request;
  if (refusal_ != nullptr) {
    delivery_.end(request.id, FinishReason::kError, refusal_);
    return;
  }
  if (!scheduler_.adapters().knows(request.adapter)) {
    delivery_.end(request.id, FinishReason::kError, "the request's adapter was unloaded");
    return;
  }
  structured_.add(submission);
  record_.count_prompt(request.prompt.size());
  const SchedulerStats scheduler = scheduler_.stats();
  requests_.arrive(request, scheduler.num_waiting, scheduler.num_running);
  const Result<void> added = scheduler_.add_request(request);
  WR_CHECK(added.has_value(), "validated by another engine? {}", added.error().message);
}

bool Intake::abort_held_back(RequestId id) {
  const auto found = std::ranges::find_if(
      held_back_, [id](const Submission& submission) { return submission.request.id == id; });
  if (found == held_back_.end()) {
    return false;
  }
  held_back_.erase(found);
  delivery_.end(id, FinishReason::kAbort);
  return true;
}

void Intake::end_aborted(RequestId id) {
  structured_.remove(id);
  delivery_.end(id, FinishReason::kAbort);
}

}  // namespace warprow
