// SPDX-License-Identifier: Apache-2.0
// What the messages of a step cost as bytes: with ranks in other processes every step pays it once.
#include "base/alloc_counter.h"
#include "wire/serialize.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int32_t kRows = 256;

// A decode step: each row advances by a token, and every 16th gets a block.
SchedulerOutput decode_step() {
  SchedulerOutput step;
  step.step = 1000;
  step.total_num_tokens = kRows;
  for (int32_t i = 0; i < kRows; ++i) {
    step.scheduled.push_back({RowId{i}, 1, 1000 + i, 0, 1, false});
    if (i % 16 == 0) {
      step.block_appends.push_back(
          {RowId{i}, 0, 63, {static_cast<int32_t>(step.block_ids.size()), 1}});
      step.block_ids.push_back(BlockId{i});
    }
  }
  return step;
}

ModelRunnerOutput decode_output() {
  ModelRunnerOutput output;
  output.step = 1000;
  for (int32_t i = 0; i < kRows; ++i) {
    output.rows.push_back({RowId{i}, 1, RowResult::kTokens, {i, 1}});
    output.token_ids.push_back(i * 7);
  }
  return output;
}

// The best of many times, because other programs disturb the rest. Checks that nothing is allocated.
double best_us(const std::function<void()>& call) {
  call();  // reserves
  Clock::duration best = Clock::duration::max();
  const int64_t before = counted_allocations();
  for (int i = 0; i < 500; ++i) {
    const CountAllocations count;
    const Clock::time_point start = Clock::now();
    call();
    best = std::min(best, Clock::now() - start);
  }
  EXPECT_EQ(counted_allocations(), before);
  return std::chrono::duration<double, std::micro>(best).count();
}

template <typename Message>
void time_message(const char* name, const Message& message, double goal_us) {
  std::vector<uint8_t> bytes;
  Message copy;
  const double write_us = best_us([&] { serialize(message, bytes); });
  const double read_us = best_us([&] { ASSERT_TRUE(deserialize(bytes, copy)); });
  EXPECT_EQ(copy, message);
  std::printf("%s of %d rows: %zu bytes, written in %.1f us, read in %.1f us (goal: %.0f)\n",
              name,
              kRows,
              bytes.size(),
              write_us,
              read_us,
              goal_us);
}

TEST(SerializeSpeed, StepsOf256Rows) {
  time_message("step", decode_step(), 20);
  time_message("output", decode_output(), 20);
}

}  // namespace
}  // namespace warprow
