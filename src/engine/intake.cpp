// SPDX-License-Identifier: Apache-2.0
#include "engine/intake.h"

#include "base/check.h"

namespace warprow {

void Intake::apply(Commands& commands) {
  if (commands.empty()) {
    return;
  }
  record_.enter(EnginePhase::kCommand);
  for (Submission& submission : commands.submissions) {
    add(submission);
  }
  for (const RequestId id : commands.aborts) {
    // Unknown: it has ended, and its final update is on its way.
    if (scheduler_.abort_request(id)) {
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

void Intake::abort_all() {
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

void Intake::end_aborted(RequestId id) {
  structured_.remove(id);
  delivery_.end(id, FinishReason::kAbort);
}

}  // namespace warprow
