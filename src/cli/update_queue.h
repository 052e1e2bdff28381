// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/engine.h"

#include <csignal>
#include <deque>
#include <mutex>
#include <optional>
#include <semaphore.h>

namespace warprow {

// Brings the engine's updates to the thread that writes answers, and wakes it for Ctrl-C.
//
// Owns: the updates not yet taken; once watch_signals() was called also the handlers of SIGINT and
// SIGTERM. Thread: push from any; the rest from one. Outlives the engine whose updates it takes.
// Invariant: at most one exists.
class UpdateQueue {
 public:
  UpdateQueue();
  ~UpdateQueue();
  UpdateQueue(const UpdateQueue&) = delete;
  UpdateQueue& operator=(const UpdateQueue&) = delete;

  void push(const RequestUpdate& update);
  [[nodiscard]] UpdateCallback callback() {
    return [this](const RequestUpdate& update) { push(update); };
  }

  // From now on SIGINT and SIGTERM are noted instead of ending the program; one that comes while
  // another is noted ends it at once. Not called before the engine is loaded, so that Ctrl-C ends a
  // long load.
  void watch_signals();

  // Waits for an update; nullopt: a signal was noted since, or long ago.
  std::optional<RequestUpdate> take();

  // The signal noted, or 0; it stays noted until forget_signal().
  [[nodiscard]] int signal() const;
  void forget_signal();

 private:
  sem_t wake_;  // posted for each update and each signal
  std::mutex mutex_;
  std::deque<RequestUpdate> updates_;  // under mutex_
  bool watching_ = false;
  struct sigaction previous_int_{};
  struct sigaction previous_term_{};
};

}  // namespace warprow
