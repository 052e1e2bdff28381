// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "executor/mp/control_block.h"
#include "executor/mp/rank_process.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace warprow {

// The executor's thread that watches its ranks. It notices within half a second that a process which it started ended or
// was stopped, or that a rank raised the abort flag; after five seconds that another process shows no sign of life; and
// after the time limit that no rank finishes a step any more. Then it raises the abort flag, says which rank failed and
// how, and kills those of its processes that still live four seconds later.
//
// Owns: the processes and the thread.
// Thread: the public functions from any.
class RankWatch {
 public:
  using Clock = std::chrono::steady_clock;
  // Called once, by the watching thread.
  using OnFailure = std::function<void(const std::string& why)>;

  // `processes` are those of the first ranks. A launcher started the others.
  RankWatch(ControlBlock& control,
            std::vector<RankProcess> processes,
            int32_t num_ranks,
            OnFailure on_failure);
  // Waits until every process has ended; kills those that need longer than two seconds. An abort, or a message, must
  // have told them to end.
  ~RankWatch();

  // From now on a rank that ends is no failure.
  void expect_end() { ending_.store(true); }
  // How long a rank may need for a step; called before the first.
  void limit_steps(std::chrono::milliseconds limit) { step_limit_.store(limit); }
  // The number of steps that were submitted. A rank that has not finished all of them must finish one in this time.
  void count_submitted(int64_t steps) { submitted_.store(steps, std::memory_order_relaxed); }

 private:
  // What is known of a rank's progress.
  struct Seen {
    uint32_t beats = 0;
    Clock::time_point beat_at;
    int64_t retired = 0;
    Clock::time_point retired_at;
  };

  struct Trouble {
    int32_t rank = 0;
    std::string why;
  };

  void watch(const std::stop_token& stop);
  [[nodiscard]] std::optional<Trouble> trouble(Clock::time_point now);
  [[nodiscard]] std::optional<Trouble> told_trouble(AbortCause cause, Clock::time_point now);
  [[nodiscard]] std::optional<std::string> trouble_of(int32_t rank, Clock::time_point now);
  [[nodiscard]] std::optional<std::string> trouble_of_process(int32_t rank,
                                                              Clock::duration silence);
  [[nodiscard]] std::optional<Trouble> stall(Clock::time_point now);
  [[nodiscard]] bool has_process(int32_t rank) const {
    return rank < static_cast<int32_t>(processes_.size());
  }
  [[nodiscard]] std::string name(int32_t rank) const;
  // "in phase running, step 12"
  [[nodiscard]] std::string position(int32_t rank) const;
  void fail(const Trouble& trouble);

  ControlBlock& control_;
  std::vector<RankProcess> processes_;
  std::vector<Seen> seen_;
  std::atomic<std::chrono::milliseconds> step_limit_{std::chrono::hours(24)};
  OnFailure on_failure_;
  std::atomic<int64_t> submitted_ = 0;
  std::atomic<bool> ending_ = false;
  std::optional<Clock::time_point> told_at_;  // when the abort flag was first seen
  std::optional<Clock::time_point> failed_at_;
  std::jthread thread_;
};

}  // namespace warprow
