// SPDX-License-Identifier: Apache-2.0
#include "executor/mp/heartbeat.h"

#include "executor/mp/rank_exit.h"

#include <cstdint>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace warprow {
namespace {

constexpr int kBeatMs = 100;
constexpr int kBeatsAfterAbort = 20;

void beat(ControlBlock& control, int32_t rank, int life_fd, int stop_fd) {
  int beats_after_abort = 0;
  for (;;) {
    control.ranks[rank].beats.fetch_add(1);
    pollfd fds[] = {{life_fd, POLLIN, 0}, {stop_fd, POLLIN, 0}};
    ::poll(fds, 2, kBeatMs);
    if (fds[1].revents != 0) {
      return;
    }
    if (fds[0].revents != 0) {  // never written to: the parent's end is closed
      ::_exit(kRankOrphaned);
    }
    if (control.abort.raised() && ++beats_after_abort > kBeatsAfterAbort) {
      ::_exit(kRankAborted);
    }
  }
}

}  // namespace

Heartbeat::Heartbeat(ControlBlock& control, int32_t rank, int life_fd)
    : stop_fd_(::eventfd(0, EFD_CLOEXEC)),
      thread_([this, &control, rank, life_fd] { beat(control, rank, life_fd, stop_fd_); }) {}

Heartbeat::~Heartbeat() {
  ::eventfd_write(stop_fd_, 1);
  thread_.join();
  ::close(stop_fd_);
}

}  // namespace warprow
