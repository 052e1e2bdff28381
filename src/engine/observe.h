// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sched/wait_reason.h"
#include "wire/model_runner_output.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace warprow {

using EngineClock = std::chrono::steady_clock;

// The engine thread's activity.
enum class EnginePhase : uint8_t {
  kIdle,  // nothing to do
  kScheduling,
  kLaunching,   // handing a step to the executor
  kDevice,      // waiting for a step's output
  kDelivering,  // passing tokens on; waits when the output thread is far behind
  kCommand,     // a command other than a request: sleep, wake-up
  kAsleep,
  kStopped,  // for good: shutdown, or a failure
};
const char* engine_phase_name(EnginePhase phase);  // "idle", "scheduling", ...

struct EngineProgress {
  EnginePhase phase = EnginePhase::kIdle;
  double seconds = 0;   // since it entered the phase
  int64_t steps = 0;    // whose output has been taken
  std::string failure;  // with kStopped: why, or empty
};

// The engine thread's phase and counts, for other threads to read while it is stuck.
//
// Thread: enter, count and fail are the engine's, read any.
class ProgressMark {
 public:
  void enter(EnginePhase phase) {
    since_.store(EngineClock::now().time_since_epoch().count(), std::memory_order_relaxed);
    phase_.store(phase, std::memory_order_release);
  }
  void count_step() { steps_.fetch_add(1, std::memory_order_relaxed); }
  void stop(const std::string& failure);
  [[nodiscard]] EngineProgress read() const;

 private:
  std::atomic<EnginePhase> phase_ = EnginePhase::kIdle;
  std::atomic<EngineClock::rep> since_ = EngineClock::now().time_since_epoch().count();
  std::atomic<int64_t> steps_ = 0;
  mutable std::mutex mutex_;
  std::string failure_;  // under mutex_
};

// One step as it went. Times are of the engine thread.
struct StepTrace {
  int64_t step = 0;
  EngineClock::time_point planned;    // scheduling began
  EngineClock::time_point launched;   // handing over began
  EngineClock::time_point handed;     // handing over ended; with grammar rows, after their masks
  EngineClock::time_point forwarded;  // forward seen done; the epoch if only with its output
  EngineClock::time_point awaited;    // waiting for its output began
  EngineClock::time_point done;       // its output was there
  int32_t num_rows = 0;
  int32_t num_toks = 0;
  int32_t num_prefill_toks = 0;  // of rows with more than one token beside drafts
  int32_t num_running = 0;       // requests, when it was planned
  int32_t num_waiting = 0;
  WaitReason wait_reason = WaitReason::kNone;  // of the first that waited
  int8_t graph_mode = 0;                       // StepStats::graph_mode; set at its end
  int32_t num_toks_padded = 0;                 // StepStats::num_toks_padded; likewise
};

// The newest steps, so that a trace of the last seconds is available on request.
//
// Owns: a ring of kCapacity records, made at the start.
// Thread: begin and end are the engine's, since any.
class StepLog {
 public:
  static constexpr size_t kCapacity = 16384;
  static constexpr size_t kMaxInFlight = 65;  // one for each stage of a pipeline, and one more
  // The last bucket of step sizes is the rest.
  static constexpr std::array<int32_t, 12> kSizeBounds = {
      1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048, 8192};

  StepLog() : ring_(kCapacity) {}

  // A step has been handed over; steps end in the order in which they began.
  void begin(const StepTrace& record) { flying_[begun_++ % kMaxInFlight] = record; }
  void end(EngineClock::time_point awaited, EngineClock::time_point done, const StepStats& stats);

  [[nodiscard]] std::vector<StepTrace> since(EngineClock::time_point when) const;

  // The number of steps by token count: by kSizeBounds, then the rest; not cumulative.
  struct Sizes {
    std::array<int64_t, kSizeBounds.size() + 1> counts{};
    int64_t num_toks = 0;
  };
  [[nodiscard]] Sizes sizes() const;

 private:
  std::array<StepTrace, kMaxInFlight> flying_;  // for the engine thread only
  size_t begun_ = 0;
  size_t ended_ = 0;
  mutable std::mutex mutex_;
  std::vector<StepTrace> ring_;  // under mutex_, as all below
  size_t num_logged_ = 0;
  Sizes sizes_;
};

// The filling of one mask of a structured request, including the processing of the token before it.
struct MaskFill {
  uint64_t request = 0;
  int64_t step = 0;  // that drew the token before; 0: the request's first mask
  int32_t worker = 0;
  EngineClock::time_point begun;
  EngineClock::time_point done;
};

// The newest fills, for the same traces.
//
// Owns: a ring of up to kCapacity records, which grows with the first ones.
// Thread: any; the engine's does not use it.
class MaskLog {
 public:
  static constexpr size_t kCapacity = 16384;

  void add(const MaskFill& fill);
  // In the order in which they ended.
  [[nodiscard]] std::vector<MaskFill> since(EngineClock::time_point when) const;

 private:
  mutable std::mutex mutex_;
  std::vector<MaskFill> ring_;  // under mutex_, like the next
  size_t num_logged_ = 0;
};

}  // namespace warprow
