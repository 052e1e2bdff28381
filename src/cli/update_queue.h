// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/engine.h"

#include <csignal>
#include <deque>
#include <mutex>
#include <optional>
#include <semaphore.h>

namespace warprow {

// Passes the engine's updates to the thread that writes answers, and wakes that thread on Ctrl-C.
//
// Owns: the updates not yet taken; after watch_signals() also the handlers of SIGINT and SIGTERM. Thread: push from
// any; the rest from one. Outlives the engine whose updates it takes.
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

  // From now on SIGINT and SIGTERM are recorded instead of ending the program. A second signal while one is recorded
  // ends the program at once. Call this only after the engine is loaded, so that Ctrl-C can end a long load.
  void watch_signals();

  // Waits for an update. nullopt: a signal is recorded, before or during the wait.
  std::optional<RequestUpdate> take();

  // The recorded signal, or 0. It stays recorded until forget_signal().
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
