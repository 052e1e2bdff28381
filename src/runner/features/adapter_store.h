// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "device/device.h"
#include "models/bank_layout.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace warprow {

// Adapters in pinned host memory, each in the layout of its bank on the device. A new one is read on a thread of its own.
//
// Owns: the memory and the reading threads.
// Thread: the rank's.
// Invariant: a copy is overwritten only after the last step that read it is done.
class AdapterStore {
 public:
  // sites and layout outlive it. elsewhere: read_peft_adapter.
  AdapterStore(Device& device,
               std::span<const LinearSite> sites,
               std::vector<std::string> elsewhere,
               const BankLayout& layout,
               int32_t max_rank,
               int32_t max_adapters);

  // Begins to read the adapter in `dir`, unless it has begun. "loading", "ready", "error CODE MESSAGE", or "busy" if all places
  // are taken. steps_taken: those whose output was taken.
  std::string load(int32_t id, const std::string& dir, uint64_t steps_taken);
  // Frees the adapter's place.
  void remove(int32_t id);

  // An adapter that is ready, for a copy in step number `step`. A check fails for another id.
  const std::byte* data_for(int32_t id, uint64_t step);

 private:
  enum class State : uint8_t { kFree, kLoading, kReady, kFailed };
  struct Place {
    PinnedBuffer memory;
    int32_t id = -1;
    std::atomic<State> state = State::kFree;
    Error error;             // kFailed
    uint64_t last_step = 0;  // that reads it
    std::jthread reader;     // while it is kLoading
  };
  Place* find(int32_t id);
  static std::string state_of(const Place& place);

  std::span<const LinearSite> sites_;
  std::vector<std::string> elsewhere_;
  const BankLayout& layout_;
  int32_t max_rank_;
  std::vector<std::unique_ptr<Place>> places_;
};

}  // namespace warprow
