// SPDX-License-Identifier: Apache-2.0
#include "cli/update_queue.h"

#include "base/check.h"

#include <atomic>
#include <cerrno>
#include <unistd.h>
#include <utility>

namespace warprow {
namespace {

// State for the signal handler, which may use only lock-free atomics and sem_post.
// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
std::atomic<sem_t*> g_wake{nullptr};
std::atomic<int> g_signal{0};
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

void note_signal(int number) {
  const int saved_errno = errno;
  if (g_signal.exchange(number) != 0) {
    _exit(128 + number);
  }
  sem_post(g_wake.load());
  errno = saved_errno;
}

}  // namespace

UpdateQueue::UpdateQueue() { WR_CHECK(sem_init(&wake_, 0, 0) == 0); }

UpdateQueue::~UpdateQueue() {
  if (watching_) {
    sigaction(SIGINT, &previous_int_, nullptr);
    sigaction(SIGTERM, &previous_term_, nullptr);
    g_wake = nullptr;
  }
  sem_destroy(&wake_);
}

void UpdateQueue::watch_signals() {
  sem_t* none = nullptr;
  WR_CHECK(g_wake.compare_exchange_strong(none, &wake_), "two queues watch the signals");
  watching_ = true;
  g_signal = 0;
  struct sigaction action{};
  action.sa_handler = note_signal;
  // Without SA_RESTART: a signal must interrupt a read of the terminal.
  sigaction(SIGINT, &action, &previous_int_);
  sigaction(SIGTERM, &action, &previous_term_);
}

void UpdateQueue::push(const RequestUpdate& update) {
  {
    const std::lock_guard lock(mutex_);
    updates_.push_back(update);
  }
  sem_post(&wake_);
}

std::optional<RequestUpdate> UpdateQueue::take() {
  while (sem_wait(&wake_) != 0) {
  }
  const std::lock_guard lock(mutex_);
  if (updates_.empty()) {
    return std::nullopt;
  }
  RequestUpdate update = std::move(updates_.front());
  updates_.pop_front();
  return update;
}

int UpdateQueue::signal() const { return g_signal; }

void UpdateQueue::forget_signal() { g_signal = 0; }

}  // namespace warprow
