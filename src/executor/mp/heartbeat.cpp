// SPDX-License-Identifier: Apache-2.0
#include "executor/mp/heartbeat.h"

#include "executor/mp/rank_exit.h"

#include <chrono>
#include <poll.h>
#include <unistd.h>

namespace warprow {
namespace {

constexpr int kBeatMs = 100;
constexpr int kBeatsAfterAbort = 20;

void beat(const std::stop_token& stop, ControlBlock& control, int32_t rank, int life_fd) {
  int beats_after_abort = 0;
  while (!stop.stop_requested()) {
    control.ranks[rank].beats.fetch_add(1);
    pollfd life{life_fd, POLLIN, 0};
    if (::poll(&life, 1, kBeatMs) > 0) {  // nobody writes: the other end is closed
      ::_exit(kRankOrphaned);
    }
    if (control.abort.raised() && ++beats_after_abort > kBeatsAfterAbort) {
      ::_exit(kRankAborted);
    }
  }
}

}  // namespace

Heartbeat::Heartbeat(ControlBlock& control, int32_t rank, int life_fd)
    : thread_([&control, rank, life_fd](const std::stop_token& stop) {
        beat(stop, control, rank, life_fd);
      }) {}

}  // namespace warprow
