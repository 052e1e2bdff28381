// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "executor/mp/rank_main.h"

#include <optional>
#include <string>
#include <sys/types.h>

namespace warprow {

// File descriptors that a rank process is started with.
inline constexpr int kRankMemoryFd = 3;  // RankMemory
inline constexpr int kRankLifeFd = 4;    // a pipe whose other end closes when the parent ends

// A process that runs one rank, a child of this one.
//
// Owns: the process: it is killed at the end, and reaped if it ends within five seconds.
// Thread: one at a time.
class RankProcess {
 public:
  // Starts the binary as a rank. It inherits stderr, which also becomes its stdout, and reads nothing. Throws
  // StartupError.
  RankProcess(const std::string& binary,
              const RankArguments& arguments,
              int memory_fd,
              int life_fd);
  ~RankProcess();
  RankProcess(RankProcess&& other) noexcept;
  RankProcess& operator=(RankProcess&&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  // How it ended: "exit code 1", "signal 9 (Killed)"; nullopt while it lives.
  [[nodiscard]] const std::optional<std::string>& ended();
  // Whether it is stopped, by a signal or a debugger.
  [[nodiscard]] bool is_stopped() const { return state() == 'T' || state() == 't'; }
  void kill();

 private:
  [[nodiscard]] char state() const;  // of /proc/PID/stat; '?' if there is none

  pid_t pid_ = -1;
  int status_ = 0;
  std::optional<std::string> ended_;
};

}  // namespace warprow
