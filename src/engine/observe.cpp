// SPDX-License-Identifier: Apache-2.0
#include "engine/observe.h"

#include <algorithm>

namespace warprow {
namespace {

// The records of a ring that were done at `when` or later, oldest first.
template <typename Record>
std::vector<Record> newest(const std::vector<Record>& ring,
                           size_t num_logged,
                           EngineClock::time_point when) {
  std::vector<Record> out;
  for (size_t back = std::min(num_logged, ring.size()); back > 0; --back) {
    const Record& record = ring[(num_logged - back) % ring.size()];
    if (record.done >= when) {
      out.push_back(record);
    }
  }
  return out;
}

}  // namespace

const char* engine_phase_name(EnginePhase phase) {
  switch (phase) {
    case EnginePhase::kIdle:
      return "idle";
    case EnginePhase::kScheduling:
      return "scheduling";
    case EnginePhase::kLaunching:
      return "launching";
    case EnginePhase::kDevice:
      return "device";
    case EnginePhase::kDelivering:
      return "delivering";
    case EnginePhase::kCommand:
      return "command";
    case EnginePhase::kAsleep:
      return "asleep";
    case EnginePhase::kStopped:
      return "stopped";
  }
  return "?";
}

void ProgressMark::stop(const std::string& failure) {
  {
    const std::scoped_lock lock(mutex_);
    failure_ = failure;
  }
  enter(EnginePhase::kStopped);
}

EngineProgress ProgressMark::read() const {
  EngineProgress out;
  out.phase = phase_.load(std::memory_order_acquire);
  out.steps = steps_.load(std::memory_order_relaxed);
  const EngineClock::time_point since(
      EngineClock::duration(since_.load(std::memory_order_relaxed)));
  const std::chrono::duration<double> elapsed = EngineClock::now() - since;
  out.seconds = std::max(elapsed.count(), 0.0);
  const std::scoped_lock lock(mutex_);
  out.failure = failure_;
  return out;
}

void StepLog::end(EngineClock::time_point awaited,
                  EngineClock::time_point done,
                  const StepStats& stats) {
  StepTrace& trace = flying_[ended_++ % kMaxInFlight];
  trace.awaited = awaited;
  trace.done = done;
  trace.graph_mode = static_cast<int8_t>(stats.graph_mode);
  trace.num_toks_padded = stats.num_toks_padded;
  const std::scoped_lock lock(mutex_);
  ring_[num_logged_++ % kCapacity] = trace;
  if (trace.num_toks > 0) {
    const auto* const bound =
        std::lower_bound(kSizeBounds.begin(), kSizeBounds.end(), trace.num_toks);
    ++sizes_.counts[static_cast<size_t>(bound - kSizeBounds.begin())];
    sizes_.num_toks += trace.num_toks;
  }
}

std::vector<StepTrace> StepLog::since(EngineClock::time_point when) const {
  const std::scoped_lock lock(mutex_);
  return newest(ring_, num_logged_, when);
}

StepLog::Sizes StepLog::sizes() const {
  const std::scoped_lock lock(mutex_);
  return sizes_;
}

void MaskLog::add(const MaskFill& fill) {
  const std::scoped_lock lock(mutex_);
  if (ring_.size() < kCapacity) {
    ring_.push_back(fill);
  } else {
    ring_[num_logged_ % kCapacity] = fill;
  }
  ++num_logged_;
}

std::vector<MaskFill> MaskLog::since(EngineClock::time_point when) const {
  const std::scoped_lock lock(mutex_);
  return newest(ring_, num_logged_, when);
}

}  // namespace warprow
