// SPDX-License-Identifier: Apache-2.0
#include "engine/inbox.h"

#include <utility>

namespace warprow {

void Commands::clear() {
  submissions.clear();
  aborts.clear();
  stopped.clear();
  sleep_calls.clear();
  errands.clear();
  closed = false;
}

bool Inbox::submit(Submission submission) {
  {
    const std::scoped_lock lock(mutex_);
    if (pending_.closed) {
      return false;
    }
    pending_.submissions.push_back(std::move(submission));
  }
  wake_.notify_one();
  return true;
}

void Inbox::abort(RequestId id) {
  {
    const std::scoped_lock lock(mutex_);
    pending_.aborts.push_back(id);
  }
  wake_.notify_one();
}

void Inbox::stop(RequestId id) {
  {
    const std::scoped_lock lock(mutex_);
    pending_.stopped.push_back(id);
  }
  wake_.notify_one();
}

bool Inbox::call(SleepCall call) {
  {
    const std::scoped_lock lock(mutex_);
    if (pending_.closed) {
      return false;
    }
    pending_.sleep_calls.push_back(std::move(call));
  }
  wake_.notify_one();
  return true;
}

bool Inbox::send(Errand errand) {
  {
    const std::scoped_lock lock(mutex_);
    if (pending_.closed) {
      return false;
    }
    pending_.errands.push_back(std::move(errand));
  }
  wake_.notify_one();
  return true;
}

void Inbox::close() {
  {
    const std::scoped_lock lock(mutex_);
    pending_.closed = true;
  }
  wake_.notify_one();
}

void Inbox::take(Commands& commands, bool wait) {
  commands.clear();
  std::unique_lock lock(mutex_);
  if (wait) {
    wake_.wait(lock, [this] { return !pending_.empty(); });
  }
  std::swap(commands, pending_);
  pending_.closed = commands.closed;  // once closed, closed for good
}

}  // namespace warprow
