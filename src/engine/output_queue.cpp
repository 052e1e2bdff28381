// SPDX-License-Identifier: Apache-2.0
#include "engine/output_queue.h"

#include <utility>

namespace warprow {

OutputQueue::OutputQueue(size_t max_step_deltas) : max_deltas_(kMaxPending + max_step_deltas) {
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
  }
  has_work_.notify_one();
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
  const auto something = [this] {
    const bool ended = pending_.end.reason != FinishReason::kNone;
    return !pending_.batch.deltas.empty() || end_is_news_ || (ended && !pending_.arrivals.empty());
  };
  has_work_.wait(lock, [&] { return something() || closed_; });
  if (!something()) {
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

}  // namespace warprow
