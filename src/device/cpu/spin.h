// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <thread>

namespace warprow::cpu {

// Hints to the core that this is a spin loop.
inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The body of a wait that is expected to be short: spins first, then yields the core to other threads.
inline void spin_or_yield(int32_t spins) {
  if (spins < 2000) {
    cpu_relax();
  } else {
    std::this_thread::yield();
  }
}

}  // namespace warprow::cpu
