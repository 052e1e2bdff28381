// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/engine.h"

#include <cstddef>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

namespace warprow {

// Updates on their way from the engine's output thread to the thread that writes answers. What is
// not taken yet of a choice is joined into one update: a slow reader costs its own answer's memory at
// most, and gets larger pieces.
//
// Thread: push from any, the rest from one. Outlives the last push (callbacks share it).
class UpdateBox {
 public:
  // wake: called on the pushing thread when there is something to take, once until it is taken;
  // without each_update only when every choice has ended. Must not block or call back.
  UpdateBox(size_t num_choices, bool each_update, std::function<void()> wake);

  void push(size_t choice, const RequestUpdate& update);
  // What is new, in the order of choices.
  std::vector<std::pair<size_t, RequestUpdate>> take();
  // No wake is called or running once this returns.
  void close();

 private:
  struct Slot {
    RequestUpdate news;
    bool filled = false;
  };

  std::mutex mutex_;
  std::vector<Slot> slots_;  // under mutex_, as all below
  size_t num_running_;
  bool each_update_;
  bool woken_ = false;
  std::function<void()> wake_;
};

}  // namespace warprow
