// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/abort_flag.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

namespace warprow {

// A counter in shared memory that one rank advances and others wait for. It may wrap around.
//
// Thread: one advances; any wait, in any process that maps the memory.
// Invariant: what was written before advance_to is visible to a thread that has seen the count. Memory of zeros is a
// count of 0.
class alignas(128) ProgressWord {
 public:
  void advance_to(uint32_t count);
  [[nodiscard]] uint32_t count() const { return count_.load(std::memory_order_acquire); }
  [[nodiscard]] bool reached(uint32_t count) const {
    return static_cast<int32_t>(this->count() - count) >= 0;
  }

 private:
  friend class Waiting;
  std::atomic<uint32_t> count_{0};
  std::atomic<uint32_t> sleepers_{0};
};
static_assert(sizeof(ProgressWord) == 128);

// How one rank waits for the others: it spins for a while and then sleeps in the kernel. The while follows what the
// last waits needed, from about 1 us where ranks share cores to about 100 us where each has its own.
//
// Thread: one.
class Waiting {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Waiting(const AbortFlag& abort) : abort_(abort) {}

  // Blocks until the word has reached the count. False: it has not, and the group was aborted or the deadline passed.
  bool until(ProgressWord& word, uint32_t count, std::optional<Clock::time_point> deadline = {});

 private:
  bool sleep(ProgressWord& word, uint32_t count, std::optional<Clock::time_point> deadline) const;

  const AbortFlag& abort_;
  int32_t spins_ = 1024;
};

}  // namespace warprow
