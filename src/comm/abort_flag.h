// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace warprow {

// What a rank was doing when the group ended.
enum class AbortPhase : uint8_t {
  kStart = 1,       // finding the other ranks
  kLoad,            // building its part of the model
  kStep,            // running a step
  kProcessEnded,    // its process is gone
  kConnectionLost,  // it cannot be reached
};

constexpr const char* abort_phase_name(AbortPhase phase) {
  switch (phase) {
    case AbortPhase::kStart:
      return "failed at start";
    case AbortPhase::kLoad:
      return "failed while loading";
    case AbortPhase::kStep:
      return "failed in a step";
    case AbortPhase::kProcessEnded:
      return "ended";
    case AbortPhase::kConnectionLost:
      return "cannot be reached";
  }
  return "failed";
}

// The first cause of an abort.
struct AbortCause {
  int32_t rank = 0;
  AbortPhase phase = AbortPhase::kStart;
};

// Whether the ranks of an engine must end, and which of them failed first. It lies in memory that all ranks of a host
// see; AbortWatch (comm/tcp/abort_watch.h) carries it to other hosts. Every wait for another rank polls it.
//
// Thread: any, of any process that maps the memory.
// Invariant: once raised it stays, with its first cause. Memory of zeros is a flag that is not raised.
class AbortFlag {
 public:
  // The flag in shared memory, which started as zeros.
  static AbortFlag& at(std::byte* memory) { return *reinterpret_cast<AbortFlag*>(memory); }

  // Returns whether this is the first cause. `rank` is the rank in the engine.
  bool raise(int32_t rank, AbortPhase phase) {
    uint32_t none = 0;
    return word_.compare_exchange_strong(none, pack({rank, phase}));
  }
  [[nodiscard]] bool raised() const { return word_.load(std::memory_order_acquire) != 0; }
  [[nodiscard]] std::optional<AbortCause> cause() const {
    const uint32_t word = word_.load(std::memory_order_acquire);
    if (word == 0) {
      return std::nullopt;
    }
    return AbortCause{static_cast<int32_t>(word >> 8), static_cast<AbortPhase>(word & 0xff)};
  }

 private:
  static uint32_t pack(AbortCause cause) {
    return static_cast<uint32_t>(cause.rank) << 8 | static_cast<uint32_t>(cause.phase);
  }

  std::atomic<uint32_t> word_{0};  // 0, or rank << 8 | phase
};
static_assert(sizeof(AbortFlag) == 4 && std::atomic<uint32_t>::is_always_lock_free);

}  // namespace warprow
