// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/engine.h"

#include <cstddef>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

namespace warprow {

// Passes updates from the engine's output thread to the thread that writes responses. Updates of a choice that are not
// taken yet are joined into one. So a slow client costs at most the memory of its own answer, and gets larger pieces.
//
// Thread: push from any, the rest from one. Outlives the last push, because the callbacks share ownership.
class UpdateBox {
 public:
  // wake: called on the pushing thread when there is an update to take, once until take(). Without each_update it is
  // called only when every choice has ended. Must not block or call this box.
  UpdateBox(size_t num_choices, bool each_update, std::function<void()> wake);

  void push(size_t choice, const RequestUpdate& update);
  // The new updates, in the order of choices.
  std::vector<std::pair<size_t, RequestUpdate>> take();
  // After this returns, wake neither runs nor is called again.
  void close();

 private:
  struct Slot {
    RequestUpdate news;
    bool filled = false;
  };

  std::mutex mutex_;
  std::vector<Slot> slots_;  // mutex_ guards this and all below
  size_t num_running_;
  bool each_update_;
  bool woken_ = false;
  std::function<void()> wake_;
};

}  // namespace warprow
