// SPDX-License-Identifier: Apache-2.0
#include "comm/progress_word.h"

#include "device/cpu/spin.h"

#include <algorithm>
#include <climits>
#include <ctime>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace warprow {
namespace {

// A pause takes 15 to 50 ns.
constexpr int32_t kFewestSpins = 64;
constexpr int32_t kMostSpins = 4096;
// How often a sleeper looks at the abort flag.
constexpr std::chrono::nanoseconds kProgressNap{20'000'000};

// The word is shared by processes, so this is not the private kind that std::atomic::wait uses.
void futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

// Sleeps until the word is no longer `value`, for at most this long, which is less than a second.
void sleep_while(std::atomic<uint32_t>& word, uint32_t value, std::chrono::nanoseconds at_most) {
  const timespec timeout = {.tv_sec = 0, .tv_nsec = at_most.count()};
  futex(word, FUTEX_WAIT, value, &timeout);
}

}  // namespace

void ProgressWord::advance_to(uint32_t count) {
  count_.store(count);  // seq_cst pairs with a waiter that is about to sleep
  if (sleepers_.load() != 0) {
    futex(count_, FUTEX_WAKE, INT_MAX, nullptr);
  }
}

bool Waiting::until(ProgressWord& word, uint32_t count, std::optional<Clock::time_point> deadline) {
  if (word.reached(count)) {
    return true;
  }
  for (int32_t spin = 0; spin < spins_; ++spin) {
    cpu::cpu_relax();
    if (word.reached(count)) {
      spins_ = std::min(spins_ * 2, kMostSpins);
      return true;
    }
  }
  spins_ = std::max(spins_ / 2, kFewestSpins);
  word.sleepers_.fetch_add(1);
  const bool reached = sleep(word, count, deadline);
  word.sleepers_.fetch_sub(1);
  return reached;
}

bool Waiting::sleep(ProgressWord& word,
                    uint32_t count,
                    std::optional<Clock::time_point> deadline) const {
  for (;;) {
    const uint32_t now = word.count_.load();
    if (static_cast<int32_t>(now - count) >= 0) {
      return true;
    }
    if (abort_.raised()) {
      return false;
    }
    std::chrono::nanoseconds nap = kProgressNap;
    if (deadline) {
      nap = std::min<std::chrono::nanoseconds>(nap, *deadline - Clock::now());
      if (nap.count() <= 0) {
        return false;
      }
    }
    sleep_while(word.count_, now, nap);
  }
}

}  // namespace warprow
