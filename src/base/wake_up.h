// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

namespace warprow {

// The single object on which a thread waits for all of its event sources: a source notifies, the thread wakes up
// and checks all of them. A notification is kept until the next wait, so an event between checking and waiting is
// not missed.
//
// Thread: notify from any; wait from one.
class WakeUp {
 public:
  using Clock = std::chrono::steady_clock;

  void notify() {
    {
      const std::scoped_lock lock(mutex_);
      notified_ = true;
    }
    wake_.notify_one();
  }

  // Waits until notified, or returns at once if notified since the last wait ended.
  void wait() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return notified_; });
    notified_ = false;
  }
  // The same, at most until `when`: a timer. Returns whether it was notified.
  bool wait_until(Clock::time_point when) {
    std::unique_lock lock(mutex_);
    wake_.wait_until(lock, when, [this] { return notified_; });
    return std::exchange(notified_, false);
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool notified_ = false;
};

}  // namespace warprow
