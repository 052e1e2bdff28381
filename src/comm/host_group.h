// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/abort_flag.h"
#include "comm/communicator.h"

#include <chrono>
#include <string>
#include <vector>

namespace warprow {

// What the ranks of an engine agree on at start-up, from host threads and not from streams: sizes of memory, addresses,
// the handles of a transport. Every rank makes the same calls in the same order.
//
// A call waits for all ranks. It throws StartupError when some are missing at the deadline or the group was aborted,
// and names them.
//
// Owns: its part of the transport. Thread: one at a time.
class HostGroup {
 public:
  virtual ~HostGroup() = default;
  HostGroup(const HostGroup&) = delete;
  HostGroup& operator=(const HostGroup&) = delete;

  [[nodiscard]] GroupPlace place() const { return place_; }
  [[nodiscard]] AbortFlag& abort() const { return abort_; }

  // Returns every rank's string, by rank. They may have any sizes.
  virtual std::vector<std::string> exchange(const std::string& mine) = 0;
  void barrier() { exchange({}); }

  // Of later calls.
  void set_patience(std::chrono::milliseconds patience) { patience_ = patience; }

 protected:
  HostGroup(GroupPlace place, AbortFlag& abort, std::chrono::milliseconds patience);

  [[nodiscard]] std::chrono::steady_clock::time_point deadline() const {
    return std::chrono::steady_clock::now() + patience_;
  }
  // Throws why a call failed: the abort's cause, or the ranks that are missing.
  [[noreturn]] void refuse(const std::vector<int32_t>& missing) const;

  AbortFlag& abort_;
  std::chrono::milliseconds patience_;  // of a call

 private:
  GroupPlace place_;
};

// Throws StartupError with the abort's cause, if there is one. `rank` is the one that says it.
void throw_if_aborted(int32_t rank, const AbortFlag& abort);

// "rank 3", "ranks 0, 2 and 3".
std::string list_ranks(const std::vector<int32_t>& ranks);

}  // namespace warprow
