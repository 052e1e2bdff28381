// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/math.h"
#include "comm/cpu/shared_memory_communicator.h"
#include "comm/shared_host_group.h"
#include "comm/shared_memory.h"
#include "tests/support/counting_communicator.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace warprow::test {

// What ranks of one group share that are threads of this process.
//
// Owns: the communicators, and the memory behind them.
// Thread: each rank's members by its thread.
class ThreadGroup {
 public:
  explicit ThreadGroup(int32_t size, SlotSizes slots = {})
      : comm_bytes_(round_up(shared_memory_communicator_bytes(size, slots), kPage)),
        shared_(SharedMemory::create(comm_bytes_ + shared_host_group_bytes(size))) {
    for (int32_t rank = 0; rank < size; ++rank) {
      const GroupPlace place{rank, size};
      comms_.push_back(std::make_unique<CountingCommunicator>(
          make_shared_memory_communicator(place, shared_.data(), abort_, slots)));
      hosts_.push_back(make_shared_host_group(
          place, shared_.data() + comm_bytes_, abort_, std::chrono::seconds(60)));
    }
  }

  [[nodiscard]] CountingCommunicator& comm(int32_t rank) const {
    return *comms_[static_cast<size_t>(rank)];
  }
  [[nodiscard]] HostGroup& host(int32_t rank) const { return *hosts_[static_cast<size_t>(rank)]; }
  // Ends the waits of all ranks, since one failed.
  void abort(int32_t rank) { abort_.raise(rank, AbortPhase::kStep); }

 private:
  static constexpr size_t kPage = 4096;

  AbortFlag abort_;
  size_t comm_bytes_;
  SharedMemory shared_;
  std::vector<std::unique_ptr<CountingCommunicator>> comms_;
  std::vector<std::unique_ptr<HostGroup>> hosts_;
};

// Runs body(rank) for each rank on a thread of its own.
inline void on_threads(int32_t size, const std::function<void(int32_t rank)>& body) {
  std::vector<std::jthread> threads;
  threads.reserve(static_cast<size_t>(size));
  for (int32_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&body, rank] { body(rank); });
  }
}

}  // namespace warprow::test
