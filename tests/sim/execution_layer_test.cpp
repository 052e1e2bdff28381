// SPDX-License-Identifier: Apache-2.0
// The contract of the execution layer: phases, overlap, memory, and steps without rows.
#include "base/alloc_counter.h"
#include "base/check.h"
#include "tests/support/model_rig.h"
#include "tests/support/source_path.h"

#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::ModelRig;
using test::RigOptions;

RigOptions tiny_options() {
  RigOptions options;
  options.config.model = test::source_path("tests/golden/tiny/llama_gqa_tied/model.gguf");
  options.config.dtype = "float32";
  options.config.max_model_len = 128;
  options.config.max_num_seqs = 8;
  options.config.max_num_batched_tokens = 64;
  options.config.kv_cache_memory_bytes = 1 << 20;
  options.device.num_threads = 1;
  return options;
}

Request make_request(uint64_t id, int32_t prompt_len, int32_t max_tokens) {
  Request request;
  request.id = id;
  for (int32_t i = 0; i < prompt_len; ++i) {
    request.prompt.push_back(3 + (i * 7 + static_cast<int32_t>(id)) % 120);
  }
  request.max_tokens = max_tokens;
  return request;
}

SchedulerOutput empty_step(int64_t number, int32_t padded) {
  SchedulerOutput step;
  step.step = number;
  step.data_parallel.num_toks_padded = padded;
  return step;
}

TEST(TwoPhases, BothMisusesAreChecked) {
  RigOptions options = tiny_options();
  options.device.mode = cpu::CpuStreamMode::kInline;
  ModelRig rig(options);
  const ScopedCheckThrows throws;
  EXPECT_THROW(rig.executor().sample_tokens(nullptr), CheckFailure);
  rig.executor().execute_model(empty_step(1, 0));
  EXPECT_THROW(rig.executor().execute_model(empty_step(2, 0)), CheckFailure);
  rig.executor().sample_tokens(nullptr);
  EXPECT_THROW(rig.executor().sample_tokens(nullptr), CheckFailure);
  ModelRunnerOutput output;
  rig.executor().take_output(output);
  EXPECT_EQ(output.step, 1);
  EXPECT_THROW(rig.executor().take_output(output), CheckFailure);
}

TEST(EmptyStep, ChangesNoState) {
  ModelRig rig(tiny_options());
  rig.add(make_request(1, 20, 30));
  for (int i = 0; i < 6; ++i) {
    rig.tick();
  }
  while (rig.executor().num_outstanding() > 0) {
    rig.collect();
  }
  const auto before = rig.executor().call(StateChecksum{}).get();
  int64_t number = 1000;
  for (const int32_t padded : {0, 1, 16, 64}) {
    rig.executor().execute_model(empty_step(number++, padded));
    rig.executor().sample_tokens(nullptr);
    ModelRunnerOutput output;
    rig.executor().take_output(output);
    EXPECT_TRUE(output.rows.empty());
    EXPECT_EQ(rig.executor().call(StateChecksum{}).get(), before) << padded << " padded tokens";
  }
  EXPECT_EQ(rig.run().at(1).tokens.size(), 30U);
  EXPECT_NE(rig.executor().call(StateChecksum{}).get(), before);
}

// A greedy request gets the same tokens under every seed. Rows, tables, history and cache are thus equal, but the
// parameters differ.
TEST(EmptyStep, TheChecksumCoversParameters) {
  std::vector<std::string> sums;
  for (const uint64_t seed : {7, 7, 8}) {
    ModelRig rig(tiny_options());
    Request request = make_request(1, 20, 5);
    request.params.seed = seed;
    rig.add(request);
    rig.run();
    sums.push_back(rig.executor().call(StateChecksum{}).get().front());
  }
  EXPECT_EQ(sums[0], sums[1]);
  EXPECT_NE(sums[0], sums[2]);
}

TEST(FinishOnly, AStepWithoutTokensReleasesRows) {
  ModelRig rig(tiny_options());
  rig.add(make_request(1, 5, 20));
  rig.tick();
  while (rig.executor().num_outstanding() > 0) {
    rig.collect();
  }
  ASSERT_TRUE(rig.scheduler().abort_request(1));
  SchedulerOutput step;
  ASSERT_TRUE(rig.scheduler().schedule(step));
  EXPECT_EQ(step.total_num_tokens, 0);
  ASSERT_EQ(step.finished_rows.size(), 1U);
  rig.submit(step);
  ModelRunnerOutput output;
  rig.executor().take_output(output);
  EXPECT_TRUE(output.rows.empty());
}

// While the device is blocked, the host can submit the next step.
TEST(Async, NextStepIsSubmittedBeforeAnyOperationOfThisOneRan) {
  ModelRig rig(tiny_options());
  rig.add(make_request(1, 10, 8));
  rig.device().set_gate(false);
  const int64_t before = rig.device().num_commands_run();
  ASSERT_TRUE(rig.tick());
  ASSERT_TRUE(rig.tick());
  EXPECT_EQ(rig.executor().num_outstanding(), 2);
  EXPECT_EQ(rig.device().num_commands_run(), before);
  EXPECT_FALSE(rig.executor().output_ready());
  rig.device().set_gate(true);
  EXPECT_EQ(rig.run().at(1).tokens.size(), 8U);
}

TEST(Deferred, NothingRunsBeforeAnEventIsWaitedFor) {
  RigOptions options = tiny_options();
  options.device.mode = cpu::CpuStreamMode::kDeferred;
  ModelRig rig(options);
  rig.add(make_request(1, 10, 8));
  const int64_t before = rig.device().num_commands_run();
  rig.tick();
  rig.tick();
  EXPECT_EQ(rig.device().num_commands_run(), before);
  rig.collect();
  EXPECT_GT(rig.device().num_commands_run(), before);
  rig.run();
}

// A thousand steps with arrivals: a step allocates nothing, and a steady step uploads no row state.
TEST(SteadyState, NoAllocationsAndNoRowStateBytes) {
  RigOptions options = tiny_options();
  options.debug_checks = false;
  ModelRig rig(options);
  std::mt19937 random(3);
  uint64_t id = 0;
  for (; id < 40; ++id) {
    rig.add(make_request(
        id + 1, 1 + static_cast<int32_t>(random() % 60), 1 + static_cast<int32_t>(random() % 60)));
  }
  for (int32_t i = 0; i < 100; ++i) {  // vectors reach their capacity in these steps
    rig.tick();
  }
  const int64_t before = rig.executor().stats().step_allocations;
  const int64_t first_step = rig.executor().stats().steps;
  while (rig.executor().stats().steps < first_step + 1000) {
    if (rig.scheduler().stats().num_waiting < 4) {
      ++id;
      rig.add(make_request(id + 1,
                           1 + static_cast<int32_t>(random() % 60),
                           1 + static_cast<int32_t>(random() % 60)));
    }
    ASSERT_TRUE(rig.tick());
  }
  if (!counts_allocations()) {
    GTEST_SKIP() << "sanitizers replace operator new";
  }
  EXPECT_EQ(rig.executor().stats().step_allocations, before);
}

TEST(SteadyState, DecodeUploadsNoRowState) {
  ModelRig rig(tiny_options());
  for (uint64_t id = 1; id <= 8; ++id) {
    rig.add(make_request(id, 1, 16));  // 17 positions: one block, then a second
  }
  int64_t steady = 0;
  SchedulerOutput step;
  ModelRunnerOutput output;
  std::vector<RequestDelta> deltas;
  while (rig.scheduler().schedule(step)) {
    rig.submit(step);
    rig.executor().take_output(output);
    rig.scheduler().update_from_output(output, deltas);
    const bool quiet = step.new_rows.empty() && step.block_appends.empty();
    EXPECT_EQ(output.stats.row_state_bytes == 0, quiet) << "step " << step.step;
    steady += quiet && !step.scheduled.empty() ? 1 : 0;
  }
  EXPECT_GE(steady, 10);
}

TEST(Memory, ArenasAreExactlyFull) {
  ModelRig rig(tiny_options());
  rig.add(make_request(1, 100, 20));
  rig.run();
  const ExecutorStats stats = rig.executor().stats();
  EXPECT_EQ(stats.workspace_high_water, stats.workspace_planned);
}

// A host access to an arena would fault here.
TEST(Memory, HostNeverTouchesDeviceMemory) {
  RigOptions options = tiny_options();
  options.device.mode = cpu::CpuStreamMode::kInline;
  options.device.guard_arenas = true;
  ModelRig rig(options);
  for (uint64_t id = 1; id <= 4; ++id) {
    rig.add(make_request(id, 30, 10));
  }
  EXPECT_EQ(rig.run().at(4).tokens.size(), 10U);
}

// An aborted request's row is reused while its last step is in flight. Neither request gets the other's tokens.
TEST(Rows, ReusedInFlight) {
  RigOptions options = tiny_options();
  options.config.max_num_seqs = 1;
  std::vector<TokenId> expected;
  {
    ModelRig rig(options);
    rig.add(make_request(2, 12, 10));
    expected = rig.run().at(2).tokens;
  }
  ModelRig rig(options);
  rig.add(make_request(1, 30, 40));
  rig.tick();
  rig.tick();
  ASSERT_EQ(rig.executor().num_outstanding(), 2);
  ASSERT_TRUE(rig.scheduler().abort_request(1));
  rig.add(make_request(2, 12, 10));
  EXPECT_EQ(rig.run().at(2).tokens, expected);
  EXPECT_TRUE(rig.results().at(1).tokens.size() <= 1);
}

}  // namespace
}  // namespace warprow
