// SPDX-License-Identifier: Apache-2.0
#include "base/alloc_counter.h"
#include "sched/scheduler.h"
#include "tests/sched/fake_runner.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using Clock = std::chrono::steady_clock;

SchedulerConfig wide_config() {
  SchedulerConfig config;
  config.max_num_seqs = 256;
  config.max_num_batched_tokens = 8192;
  config.max_model_len = 4096;
  config.max_concurrent_steps = 2;
  config.kv = {{KvGroupSpec{}}, 20'000};
  return config;
}

Request speed_request(uint64_t id, int32_t prompt_len, int32_t max_tokens) {
  Request request;
  request.id = id;
  request.prompt.resize(static_cast<size_t>(prompt_len));
  std::iota(request.prompt.begin(), request.prompt.end(), static_cast<TokenId>(id * 1000));
  request.max_tokens = max_tokens;
  request.eos_token_ids = {2};
  return request;
}

// Runs one step ahead and adds up the time and allocations of the scheduler's two calls.
struct Loop {
  explicit Loop(const SchedulerConfig& config) : scheduler(config) {
    for (SchedulerOutput& step : steps) {
      scheduler.reserve(step);
    }
    deltas.reserve(256);
  }

  bool timed(auto call) {
    const CountAllocations count;
    const int64_t before = counted_allocations();
    const Clock::time_point start = Clock::now();
    const bool result = call();
    elapsed += Clock::now() - start;
    allocations += counted_allocations() - before;
    return result;
  }

  void advance() {
    SchedulerOutput& step = steps[num_launched % 2];
    const bool launched = timed([&] { return scheduler.schedule(step); });
    if (launched) {
      num_rows += static_cast<int64_t>(step.scheduled.size());
      outputs[num_launched++ % 2] = runner.run(step);
    }
    if (scheduler.num_in_flight() == 2 || !launched) {
      timed([&] {
        scheduler.update_from_output(outputs[num_collected++ % 2], deltas);
        return true;
      });
    }
  }

  Scheduler scheduler;
  testing::FakeRunner runner;
  SchedulerOutput steps[2];
  ModelRunnerOutput outputs[2];
  std::vector<RequestDelta> deltas;
  size_t num_launched = 0;
  size_t num_collected = 0;
  int64_t num_rows = 0;
  int64_t allocations = 0;
  Clock::duration elapsed{};
};

TEST(SchedulerSpeed, SteadyDecodeOf256Rows) {
  Loop loop(wide_config());
  for (uint64_t id = 1; id <= 256; ++id) {
    ASSERT_TRUE(loop.scheduler.add_request(speed_request(id, 100, 1000)));
  }
  for (int i = 0; i < 20; ++i) {
    loop.advance();
  }
  loop.allocations = 0;
  double best_ns = 1e9;  // the best of ten batches, because other programs disturb the rest
  for (int batch = 0; batch < 10; ++batch) {
    loop.num_rows = 0;
    loop.elapsed = {};
    for (int i = 0; i < 90; ++i) {
      loop.advance();
    }
    ASSERT_EQ(loop.num_rows, 90 * 256);
    const double ns = std::chrono::duration<double, std::nano>(loop.elapsed).count();
    best_ns = std::min(best_ns, ns / static_cast<double>(loop.num_rows));
  }
  EXPECT_EQ(loop.allocations, 0);
  std::printf("schedule + update: %.1f ns a running request and step at 256 rows (goal: 200)\n",
              best_ns);
}

TEST(SchedulerSpeed, NoAllocationsWithArrivals) {
  SchedulerConfig config = wide_config();
  config.max_num_seqs = 32;
  Loop loop(config);
  uint64_t id = 1;
  // add_request allocates, which shows that the counter works.
  ASSERT_TRUE(loop.timed(
      [&] { return loop.scheduler.add_request(speed_request(id, 20, 10)).has_value(); }));
  EXPECT_EQ(loop.allocations > 0, counts_allocations());
  for (int i = 0; i < 1100; ++i) {
    if (i == 100) {
      loop.allocations = 0;
    }
    while (loop.scheduler.stats().num_waiting < 4) {
      ++id;
      ASSERT_TRUE(loop.scheduler.add_request(
          speed_request(id, 20 + static_cast<int32_t>(id * 7 % 50), 10)));
    }
    loop.advance();
  }
  EXPECT_GT(id, 1000U);
  EXPECT_EQ(loop.allocations, 0);
}

}  // namespace
}  // namespace warprow
