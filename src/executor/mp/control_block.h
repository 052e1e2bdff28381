// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/abort_flag.h"
#include "comm/rank_place.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace warprow {

// What a rank is doing.
enum class RankPhase : uint32_t {
  kStarting,    // the process has started; it has no device yet
  kLoading,     // plans, loads, warms up
  kWaiting,     // for a message, no step in flight
  kSubmitting,  // a step to its device
  kRunning,     // waits for its device
  kOperation,   // runs an operation, such as sleep
};
std::string_view rank_phase_name(RankPhase phase);

// A rank's state, which the rank writes and the parent reads. Zeros at first.
struct alignas(64) RankState {
  static constexpr size_t kMessageBytes = 1024;

  std::atomic<RankPhase> phase;
  std::atomic<uint32_t> beats;        // of its heartbeat thread, ten a second
  std::atomic<int64_t> step;          // the last one that it submitted
  std::atomic<int64_t> retired;       // steps whose output it has taken
  std::atomic<int64_t> forward_done;  // the last step that waited for masks with its forward done
  std::atomic<uint32_t> has_failed;   // 1: it writes the message, 2: it has
  char message[kMessageBytes];        // why it failed
  char where[96];  // the process and host of a rank that a launcher started; else empty

  // Says why the rank ends. Only the first call counts.
  void fail(std::string_view why);
  // Empty if it has not failed.
  [[nodiscard]] std::string failure() const;
};

// The engine's state in shared memory. Zeros at first.
//
// Thread: any.
struct ControlBlock {
  AbortFlag abort;
  RankState ranks[kMaxRanks];
};

}  // namespace warprow
