// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "config/engine_config.h"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace warprow::test {

// What a launcher does, for ranks on this host: this process is rank 0, whose executor the test makes; the other ranks are
// processes (tests/support/rank_process.cpp) with the same settings. All have the variables of torchrun.
//
// Owns: the processes, which are killed at the end, and the variables.
class LaunchedRanks {
 public:
  // Settings of `other` as text, NAME=VALUE, replace those of the other ranks.
  explicit LaunchedRanks(const EngineConfig& config, const std::vector<std::string>& other = {});
  ~LaunchedRanks();
  LaunchedRanks(const LaunchedRanks&) = delete;
  LaunchedRanks& operator=(const LaunchedRanks&) = delete;

  [[nodiscard]] pid_t pid(int32_t rank) const { return pids_[static_cast<size_t>(rank - 1)]; }
  // Waits for the process's end; its exit code, 128 + a signal, or nullopt if it still lives.
  std::optional<int> exit_code(int32_t rank, std::chrono::milliseconds patience);

  // Where the ranks of the next LaunchedRanks meet.
  static uint16_t free_port();

 private:
  std::vector<pid_t> pids_;
};

}  // namespace warprow::test
