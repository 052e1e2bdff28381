// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/cpu/cpu_device.h"
#include "tests/comm/rank_operations.h"
#include "tests/support/sanitizers.h"

#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <sys/types.h>
#include <thread>
#include <vector>

namespace warprow::test {

using Clock = std::chrono::steady_clock;

// ThreadSanitizer does not follow threads that a forked process starts.
#if WR_TSAN
#define WR_SKIP_FORKS() GTEST_SKIP() << "forked ranks start threads: not under ThreadSanitizer"
#else
#define WR_SKIP_FORKS()
#endif

// How many operations a test with random ones runs. ThreadSanitizer is about ten times slower.
#if WR_TSAN
inline constexpr int32_t kManyOperations = 500;
#else
inline constexpr int32_t kManyOperations = 2000;
#endif

// Runs body(rank) for each rank, as threads of this process.
void as_threads(int32_t size, const std::function<void(int32_t rank)>& body);

// A child process that runs a body and exits with what it returns. Killed when the object goes, if still running.
class ChildProcess {
 public:
  explicit ChildProcess(const std::function<int()>& body);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // The exit status.
  int wait() const;
  // Ends it with kill -9; returns the signal that ended it.
  int kill() const;

 private:
  int reap() const;
  mutable pid_t pid_ = -1;
};

// Runs body(rank) for each rank in a process of its own. What they return is put together: "" if all is well.
std::string as_processes(int32_t size, const std::function<std::string(int32_t rank)>& body);

std::unique_ptr<cpu::CpuDevice> make_test_device(cpu::CpuStreamMode mode, int32_t num_threads = 1);

// Enqueues the operations on a device of the rank's own, some at a time, and checks all outputs. Returns the first
// that is wrong, "" if none is.
std::string run_operations(Communicator& comm,
                           GroupPlace place,
                           cpu::CpuStreamMode mode,
                           const std::vector<Operation>& operations,
                           int32_t num_threads = 1);
// How long the stream takes with an operation that an abort ends. What is prepared before does not count.
Clock::duration time_until_abort(Communicator& comm,
                                 GroupPlace place,
                                 cpu::CpuStreamMode mode,
                                 const Operation& operation);
// Records them all as one graph and launches it several times.
std::string replay_operations(Communicator& comm,
                              GroupPlace place,
                              cpu::CpuStreamMode mode,
                              const std::vector<Operation>& operations,
                              int32_t times);

}  // namespace warprow::test
