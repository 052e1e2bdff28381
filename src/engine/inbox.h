// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/wake_up.h"
#include "engine/engine.h"
#include "sched/request.h"
#include "text/grammar.h"

#include <functional>
#include <mutex>
#include <optional>
#include <vector>

namespace warprow {

// A request as the scheduler takes it, and the grammar that its answer must match.
struct Submission {
  Request request;
  std::optional<Grammar> grammar;
};

// Something to do between two steps. Dropped without a call when the engine ends.
using Task = std::function<void()>;

// Commands to the engine thread since its last take(). Submissions come first: an abort may name one of
// them.
struct Commands {
  std::vector<Submission> submissions;
  std::vector<RequestId> aborts;   // by clients
  std::vector<RequestId> stopped;  // by the output thread, which saw a stop string
  std::vector<Task> tasks;
  bool closed = false;

  void clear();
  [[nodiscard]] bool empty() const {
    return submissions.empty() && aborts.empty() && stopped.empty() && tasks.empty() && !closed;
  }
};

// The way into the engine thread, and the one place where it waits: for commands, and for all
// else that notifies wake_up() (masks, outputs of an executor that notifies). A writer never
// waits for the engine, so a callback on the output thread may submit and abort. The caller of
// submit() limits how many requests queue up (the server refuses, the command line submits as it
// goes).
//
// Owns: the pending commands; the wake-up.
// Thread: any to write, the engine's to take.
// Invariant: commands of one kind are taken in the order in which they were written; after close() submissions are
// refused.
class Inbox {
 public:
  // False after close(): the submission is dropped.
  bool submit(Submission submission);
  void abort(RequestId id);
  void stop(RequestId id);
  // False after close(): the task will not run.
  bool send(Task task);
  // Refuses later commands and wakes the engine thread.
  void close();

  // Replaces `commands` by all that is pending, in O(1); never waits.
  void take(Commands& commands);

  // Every command notifies it. The engine's thread waits here, and for a step's output in
  // Executor::take_output.
  [[nodiscard]] WakeUp& wake_up() { return wake_up_; }

 private:
  std::mutex mutex_;
  Commands pending_;
  WakeUp wake_up_;
};

}  // namespace warprow
