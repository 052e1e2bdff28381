// SPDX-License-Identifier: Apache-2.0
#include "engine/inbox.h"

#include <utility>

namespace warprow {

void Commands::clear() {
  submissions.clear();
  aborts.clear();
  stopped.clear();
  tasks.clear();
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
  wake_up_.notify();
  return true;
}

void Inbox::abort(RequestId id) {
  {
    const std::scoped_lock lock(mutex_);
    pending_.aborts.push_back(id);
  }
  wake_up_.notify();
}

void Inbox::stop(RequestId id) {
  {
    const std::scoped_lock lock(mutex_);
    pending_.stopped.push_back(id);
  }
  wake_up_.notify();
}

bool Inbox::send(Task task) {
  {
    const std::scoped_lock lock(mutex_);
    if (pending_.closed) {
      return false;
    }
    pending_.tasks.push_back(std::move(task));
  }
  wake_up_.notify();
  return true;
}

void Inbox::close() {
  {
    const std::scoped_lock lock(mutex_);
    pending_.closed = true;
  }
  wake_up_.notify();
}

void Inbox::take(Commands& commands) {
  commands.clear();
  const std::scoped_lock lock(mutex_);
  std::swap(commands, pending_);
  pending_.closed = commands.closed;  // once closed, closed for good
}

}  // namespace warprow
