// SPDX-License-Identifier: Apache-2.0
#include "engine/output_queue.h"

#include <chrono>
#include <thread>
#include <utility>

namespace warprow {
namespace {

// When the output thread stops sleeping before a batch is due, and how long behind that it gives up.
// A sleep with an end lasts some 100 us longer than asked.
constexpr std::chrono::microseconds kAwakeBefore{200};
constexpr std::chrono::microseconds kAwakeBehind{100};

}  // namespace

OutputQueue::OutputQueue(size_t max_step_deltas, bool may_poll)
    : max_deltas_(kMaxPending + max_step_deltas), may_poll_(may_poll) {
  pending_.batch.reserve(max_deltas_);
}

void OutputQueue::add(std::unique_ptr<RequestOutput> request) {
  bool wake = false;
  {
    const std::scoped_lock lock(mutex_);
    pending_.arrivals.push_back(std::move(request));
    wake = pending_.end.reason != FinishReason::kNone;  // otherwise its first delta will
  }
  if (wake) {
    has_work_.notify_one();
  }
}

void OutputQueue::publish(OutputBatch& batch) {
  if (batch.deltas.empty()) {
    return;
  }
  {
    std::unique_lock lock(mutex_);
    has_room_.wait(lock, [this] { return pending_.batch.deltas.size() < kMaxPending; });
    if (pending_.batch.deltas.empty()) {
      std::swap(pending_.batch, batch);
    } else {
      pending_.batch.append(batch);
    }
    const EngineClock::time_point now = EngineClock::now();
    due_ = now + (now - published_);
    published_ = now;
  }
  was_published_.store(true, std::memory_order_release);
  has_work_.notify_one();  // costs nothing where nobody sleeps
}

void OutputQueue::end(EngineEnd how) {
  {
    const std::scoped_lock lock(mutex_);
    pending_.end = std::move(how);
    end_is_news_ = true;
  }
  has_work_.notify_one();
}

void OutputQueue::close() {
  {
    const std::scoped_lock lock(mutex_);
    closed_ = true;
  }
  has_work_.notify_one();
}

bool OutputQueue::take(OutputWork& work) {
  work.arrivals.clear();
  work.batch.clear();
  std::unique_lock lock(mutex_);
  if (may_poll_) {
    poll_until_due(lock);
  }
  has_work_.wait(lock, [this] { return has_news() || closed_; });
  if (!has_news()) {
    return false;
  }
  std::swap(work.arrivals, pending_.arrivals);
  std::swap(work.batch, pending_.batch);
  work.end = pending_.end;
  end_is_news_ = false;
  lock.unlock();
  has_room_.notify_one();
  return true;
}

// Sleeps until the next batch is nearly due, then asks for it, without the lock.
void OutputQueue::poll_until_due(std::unique_lock<std::mutex>& lock) {
  const EngineClock::time_point due = due_;
  was_published_.store(false, std::memory_order_relaxed);
  if (has_work_.wait_until(lock, due - kAwakeBefore, [this] { return has_news() || closed_; })) {
    return;
  }
  lock.unlock();
  while (!was_published_.load(std::memory_order_acquire) &&
         EngineClock::now() < due + kAwakeBehind) {
    std::this_thread::yield();
  }
  lock.lock();
}

}  // namespace warprow
