// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/delivery.h"
#include "engine/engine_record.h"
#include "engine/inbox.h"
#include "engine/request_log.h"
#include "engine/structured_requests.h"
#include "sched/scheduler.h"

#include <vector>

namespace warprow {

// Applies commands between two steps: requests enter the scheduler, or leave it before their last token, and tasks run.
//
// Thread: the engine's.
// Invariant: a request that the scheduler does not take, or that is aborted, gets its end here.
class Intake {
 public:
  Intake(Scheduler& scheduler,
         StructuredRequests& structured,
         Delivery& delivery,
         EngineRecord& record,
         RequestLog& requests)
      : scheduler_(scheduler),
        structured_(structured),
        delivery_(delivery),
        record_(record),
        requests_(requests) {}

  // Submissions first: an abort may name one of them. Tasks last; their calls on the engine see all the rest applied.
  void apply(Commands& commands);
  // Ends every request of the scheduler, and those held back, with kAbort.
  void abort_all();
  // From now on new requests wait outside the scheduler, until they are let in, in their order.
  void hold_back() { holds_back_ = true; }
  void let_in();
  // From now on new requests end with this error, a literal; null: they are accepted.
  void refuse_with(const char* error) { refusal_ = error; }

 private:
  void add(Submission& submission);
  // False if it is not held back.
  bool abort_held_back(RequestId id);
  void end_aborted(RequestId id);

  Scheduler& scheduler_;
  StructuredRequests& structured_;
  Delivery& delivery_;
  EngineRecord& record_;
  RequestLog& requests_;
  const char* refusal_ = nullptr;
  bool holds_back_ = false;
  std::vector<Submission> held_back_;
};

}  // namespace warprow
