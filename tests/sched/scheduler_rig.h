// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sched/scheduler.h"
#include "tests/sched/fake_runner.h"

#include <numeric>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace warprow::testing {

inline SchedulerConfig small_config(int32_t num_blocks = 64, int32_t block_size = 16) {
  SchedulerConfig config;
  config.max_num_seqs = 8;
  config.max_num_batched_tokens = 64;
  config.max_model_len = 512;
  KvGroupSpec group;
  group.block_size = block_size;
  config.kv = {{group}, num_blocks};
  return config;
}

inline std::vector<TokenId> tokens_from(int32_t first, int32_t count) {
  std::vector<TokenId> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// A scheduler with a fake runner that answers at once, or later if a test delays outputs.
struct SchedulerRig {
  explicit SchedulerRig(const SchedulerConfig& config) : scheduler(config) {}

  void add(uint64_t id,
           std::vector<TokenId> prompt,
           int32_t max_tokens = 100,
           int32_t priority = 0) {
    Request request;
    request.id = id;
    request.prompt = std::move(prompt);
    request.max_tokens = max_tokens;
    request.priority = priority;
    add(request);
  }
  void add(const Request& request) {
    const auto added = scheduler.add_request(request);
    ASSERT_TRUE(added) << added.error().message;
  }
  // Schedules a step and runs it. Its output waits in `pending`.
  bool launch() {
    if (!scheduler.schedule(step, max_mixed_prefill)) {
      return false;
    }
    scheduler.check_invariants();
    pending.push_back(runner.run(step));
    return true;
  }
  void collect() {
    scheduler.update_from_output(pending.front(), deltas);
    pending.erase(pending.begin());
    scheduler.check_invariants();
  }
  bool run_step() {
    if (!launch()) {
      return false;
    }
    collect();
    return true;
  }
  // {tokens, tokens computed before} of each scheduled row.
  [[nodiscard]] std::vector<std::pair<int32_t, int32_t>> plan() const {
    std::vector<std::pair<int32_t, int32_t>> rows;
    for (const ScheduledRow& row : step.scheduled) {
      rows.emplace_back(row.num_tokens, row.num_computed_tokens);
    }
    return rows;
  }

  Scheduler scheduler;
  FakeRunner runner;
  int32_t max_mixed_prefill = 0;
  SchedulerOutput step;
  std::vector<ModelRunnerOutput> pending;
  std::vector<RequestDelta> deltas;
};

}  // namespace warprow::testing
