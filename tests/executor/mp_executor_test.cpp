// SPDX-License-Identifier: Apache-2.0
// Ranks in processes of their own: their start, steps and operations, and what becomes of the others when one fails.
#include "base/error.h"
#include "executor/make_executor.h"
#include "tests/executor/executor_faults.h"
#include "tests/executor/step_cost.h"
#include "tests/executor/tiny_config.h"
#include "tests/support/random_adapter.h"
#include "tests/support/random_model.h"
#include "tests/support/temp_dir.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;
using test::failure_of;
using test::run_empty_step;
using test::ScopedFault;
using test::start_error_of;

EngineConfig ranks_config(int32_t num_ranks) {
  EngineConfig config = test::tiny_config();
  config.dtype = "float32";
  config.tensor_parallel_size = num_ranks;
  config.distributed_executor_backend = "mp";
  config.worker_binary =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "rank_process";
  return config;
}

// Two stages of a layer each. Rank 0 is the first, rank 1 has the outputs.
EngineConfig two_stages() {
  EngineConfig config = ranks_config(1);
  config.pipeline_parallel_size = 2;
  return config;
}

// The processes that run ranks of this test's executor.
std::vector<pid_t> rank_processes() {
  std::vector<pid_t> found;
  std::ifstream children("/proc/self/task/" + std::to_string(gettid()) + "/children");
  for (pid_t pid = 0; children >> pid;) {
    found.push_back(pid);
  }
  return found;
}

// How an executor with this configuration fails.
std::string failure_with(const EngineConfig& config, Clock::duration& took) {
  const std::unique_ptr<Executor> executor = make_executor(config);
  return failure_of(*executor, took);
}

class MpExecutor : public ::testing::TestWithParam<int32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, MpExecutor, ::testing::Values(1, 2));

TEST_P(MpExecutor, RunsStepsInOrderAndAnswersOperations) {
  const std::unique_ptr<Executor> executor = make_executor(ranks_config(GetParam()));
  EXPECT_EQ(executor->model_facts().max_num_seqs, 4);
  EXPECT_FALSE(executor->model_facts().kv.groups.empty());
  EXPECT_EQ(executor->call(CheckHealth{}).get(),
            std::vector<std::string>(static_cast<size_t>(GetParam()), "ok"));
  EXPECT_EQ(executor->call(CheckHealth{}, RankSet::only(GetParam() - 1)).get(),
            std::vector<std::string>{"ok"});
  WakeUp wake_up;
  EXPECT_TRUE(executor->set_wake_up(&wake_up));
  ModelRunnerOutput output;
  for (int64_t step = 1; step <= 20; ++step) {
    run_empty_step(*executor, step);
    wake_up.wait();
    executor->take_output(output);
    EXPECT_EQ(output.step, step);
  }
  EXPECT_EQ(executor->stats().steps, 20);
  executor->set_wake_up(nullptr);
}

// Each rank reads an adapter and answers for itself. Places are free again after a failure.
TEST(MpExecutorAdapters, EveryRankLoads) {
  const test::TempDir dir;
  const test::RandomModel model{.num_layers = 2, .hidden_size = 128, .intermediate_size = 128};
  EngineConfig config = ranks_config(2);
  config.model = model.write(dir);
  config.kv_cache_memory_bytes = 4 << 20;
  config.enable_lora = true;
  const std::unique_ptr<Executor> executor = make_executor(config);
  EXPECT_EQ(executor->model_facts().max_loras, 1);
  const auto load = [&](int32_t id, const std::string& path) {
    std::vector<std::string> states;
    do {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      states = executor->call(LoadLora{id, path}).get();
    } while (std::ranges::count(states, "loading") > 0);
    return states;
  };
  const std::string none = (dir.path() / "none").string();
  for (const std::string& state : load(0, none)) {
    EXPECT_THAT(state, AllOf(HasSubstr("error "), HasSubstr(none)));
  }
  const std::string path = test::RandomAdapter{}.write(dir, "adapter", model);
  EXPECT_EQ(load(1, path), std::vector<std::string>(2, "busy"));
  executor->call(UnloadLora{0}).get();
  EXPECT_EQ(load(1, path), std::vector<std::string>(2, "ready"));
}

TEST(MpExecutorStages, KeepsAStepForEachStageInFlight) {
  const std::unique_ptr<Executor> executor = make_executor(two_stages());
  EXPECT_EQ(executor->max_concurrent_batches(), 3);
  EXPECT_EQ(executor->call(CheckHealth{}).get(), std::vector<std::string>(2, "ok"));
  ModelRunnerOutput output;
  int64_t step = 0;
  while (step < 3) {
    run_empty_step(*executor, ++step);
  }
  EXPECT_EQ(executor->num_outstanding(), 3);
  for (int64_t taken = 1; taken <= 20; ++taken) {
    executor->take_output(output);
    EXPECT_EQ(output.step, taken);
    if (step < 20) {
      run_empty_step(*executor, ++step);
    }
  }
  EXPECT_EQ(executor->call(SleepRanks{1}).get().size(), 2U);
  EXPECT_EQ(executor->call(WakeRanks{}).get().size(), 2U);
}

// Rows 0 to num_rows - 1 with a prompt of one token each, in blocks and pages of their own.
SchedulerOutput first_step_of(int32_t num_rows) {
  SchedulerOutput step;
  step.step = 1;
  step.total_num_tokens = num_rows;
  for (int32_t row = 0; row < num_rows; ++row) {
    NewRow& added = step.new_rows.emplace_back();
    added.row = RowId{row};
    added.generation = 1;
    added.prompt_len = added.prefill_len = 1;
    added.tokens = {row, 1};
    step.token_ids.push_back(row % 128);
    step.block_ids.push_back(BlockId{1 + row});
    step.block_appends.push_back({added.row, 0, 0, {row, 1}});
    step.page_ids.push_back(PageId{1 + row});
    step.page_appends.push_back({added.row, 0, {row, 1}});
    step.scheduled.push_back({added.row, 1, 0, 0, 1});
  }
  return step;
}

// The results of 7000 rows are 140,000 bytes, more than a slot of the memory between stages. Those of the last step are
// not read when the ranks go to sleep.
TEST(MpExecutorStages, ResultsLargerThanASlotDoNotStopTheLastStage) {
  constexpr int32_t kRows = 7000;
  const auto tokens_of = [](EngineConfig config) {
    config.max_num_seqs = config.max_num_batched_tokens = kRows;
    config.max_model_len = 16;
    config.kv_cache_memory_bytes = int64_t{128} << 20;
    const std::unique_ptr<Executor> executor = make_executor(config);
    SchedulerOutput step = first_step_of(kRows);
    ModelRunnerOutput output;
    std::vector<TokenId> tokens;
    for (int32_t computed = 1; computed <= 3; ++computed) {
      executor->execute_model(step);
      executor->sample_tokens(nullptr);
      executor->take_output(output);
      tokens.insert(tokens.end(), output.token_ids.begin(), output.token_ids.end());
      step.clear();
      step.results_through = computed;
      step.step = 1 + computed;
      step.total_num_tokens = kRows;
      for (int32_t row = 0; row < kRows; ++row) {
        step.scheduled.push_back({RowId{row}, 1, computed, 0, 1});
      }
    }
    executor->call(SleepRanks{1}).get();
    executor->call(WakeRanks{}).get();
    return tokens;
  };
  const std::vector<TokenId> alone = tokens_of(ranks_config(1));
  EXPECT_EQ(alone.size(), size_t{3} * kRows);
  EXPECT_EQ(tokens_of(two_stages()), alone);
}

TEST(MpExecutorStages, MoreStagesThanLayersAreRefused) {
  EngineConfig config = two_stages();
  config.pipeline_parallel_size = 3;
  const StartupError error = start_error_of(config);
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_STREQ(error.what(), "pipeline-parallel-size 3 is more than the model's 2 layers");
}

// The way of a step to the ranks and back, without a forward.
TEST_P(MpExecutor, WhatAStepCosts) {
  const std::unique_ptr<Executor> executor = make_executor(ranks_config(GetParam()));
  std::printf(
      "an empty step with %d ranks: %.1f us\n", GetParam(), test::empty_step_us(*executor, 500));
}

TEST_P(MpExecutor, EndsItsProcesses) {
  std::unique_ptr<Executor> executor = make_executor(ranks_config(GetParam()));
  const std::vector<pid_t> ranks = rank_processes();
  ASSERT_EQ(ranks.size(), static_cast<size_t>(GetParam()));
  const Clock::time_point begin = Clock::now();
  executor.reset();
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(2));
  for (const pid_t rank : ranks) {
    EXPECT_EQ(::kill(rank, 0), -1);
  }
}

TEST_P(MpExecutor, AStartThatFailsSaysWhy) {
  EngineConfig config = ranks_config(GetParam());
  config.kv_cache_memory_bytes = 1024;
  const StartupError error = start_error_of(config);
  EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
  EXPECT_THAT(error.what(), HasSubstr("kv_cache_memory_bytes is 1024"));
  EXPECT_TRUE(rank_processes().empty());
}

TEST_P(MpExecutor, AMissingWorkerBinaryIsNamed) {
  EngineConfig config = ranks_config(GetParam());
  config.worker_binary = "/nonesuch/worker";
  EXPECT_THAT(start_error_of(config).what(),
              HasSubstr("worker-binary: cannot start /nonesuch/worker"));
}

TEST_P(MpExecutor, AKilledRankFailsTheRestWithinASecond) {
  const std::unique_ptr<Executor> executor = make_executor(ranks_config(GetParam()));
  ::kill(rank_processes().back(), SIGKILL);
  Clock::duration took{};
  EXPECT_THAT(failure_of(*executor, took), HasSubstr("ended with signal 9 (Killed) in phase"));
  EXPECT_LT(took, std::chrono::seconds(1));
}

TEST_P(MpExecutor, AStoppedRankFailsTheRestWithinASecond) {
  const std::unique_ptr<Executor> executor = make_executor(ranks_config(GetParam()));
  ::kill(rank_processes().back(), SIGSTOP);
  Clock::duration took{};
  EXPECT_THAT(failure_of(*executor, took), HasSubstr("is stopped in phase"));
  EXPECT_LT(took, std::chrono::seconds(1));
}

TEST_P(MpExecutor, AnIdleExecutorSaysThatARankEnded) {
  const std::unique_ptr<Executor> executor = make_executor(ranks_config(GetParam()));
  WakeUp wake_up;
  executor->set_wake_up(&wake_up);
  EXPECT_FALSE(executor->idle_step());
  ::kill(rank_processes().back(), SIGKILL);
  EXPECT_TRUE(wake_up.wait_until(Clock::now() + std::chrono::seconds(1)));
  EXPECT_THROW((void)executor->idle_step(), std::runtime_error);
  executor->set_wake_up(nullptr);
}

TEST(MpExecutorFaults, ARankThatEndsBeforeItLoadsFailsTheStart) {
  const ScopedFault fault("start", 1);
  EXPECT_THAT(
      start_error_of(ranks_config(2)).what(),
      AllOf(HasSubstr("rank 1 of 2"), HasSubstr("ended with exit code 7 in phase starting")));
  EXPECT_TRUE(rank_processes().empty());
}

TEST(MpExecutorFaults, ARankThatThrowsWhileLoadingFailsTheStart) {
  const ScopedFault fault("loading", 1);
  const StartupError error = start_error_of(ranks_config(2));
  EXPECT_EQ(error.code(), ErrorCode::kInternal);
  EXPECT_STREQ(error.what(), "rank 1: these weights are refused");
  EXPECT_TRUE(rank_processes().empty());
}

TEST(MpExecutorFaults, ARankThatThrowsInAStepSaysWhy) {
  const ScopedFault fault("throw", 1);
  const std::unique_ptr<Executor> executor = make_executor(ranks_config(2));
  Clock::duration took{};
  EXPECT_THAT(failure_of(*executor, took),
              AllOf(HasSubstr("rank 1 of 2"), HasSubstr("failed in a step: this step is refused")));
  EXPECT_LT(took, std::chrono::seconds(1));
}

// The other rank waits for it in a collective.
TEST(MpExecutorFaults, ARankThatIsKilledInAStepFailsTheRestWithinASecond) {
  for (const int32_t rank : {0, 1}) {
    const ScopedFault fault("killed", rank);
    const std::unique_ptr<Executor> executor = make_executor(ranks_config(2));
    Clock::duration took{};
    EXPECT_THAT(failure_of(*executor, took),
                AllOf(HasSubstr("rank " + std::to_string(rank) + " of 2"),
                      HasSubstr("ended with signal 9 (Killed) in phase submitting, step 3")));
    EXPECT_LT(took, std::chrono::seconds(1));
  }
}

// The other stage waits for its residual stream.
TEST(MpExecutorFaults, AStageThatFailsInAStepSaysWhy) {
  Clock::duration took{};
  {
    const ScopedFault fault("throw", 0);
    EXPECT_THAT(
        failure_with(two_stages(), took),
        AllOf(HasSubstr("rank 0 of 2"), HasSubstr("failed in a step: this step is refused")));
    EXPECT_LT(took, std::chrono::seconds(1));
  }
  {
    const ScopedFault fault("killed", 0);
    EXPECT_THAT(failure_with(two_stages(), took),
                AllOf(HasSubstr("rank 0 of 2"),
                      HasSubstr("ended with signal 9 (Killed) in phase submitting, step 3")));
    EXPECT_LT(took, std::chrono::seconds(1));
  }
  EXPECT_TRUE(rank_processes().empty());
}

TEST(MpExecutorFaults, AStageThatIsStuckInAStepFailsTheRestAfterTheStallTimeout) {
  for (const int32_t rank : {0, 1}) {
    const ScopedFault fault("stuck", rank);
    EngineConfig config = two_stages();
    config.stall_timeout = 1;
    Clock::duration took{};
    EXPECT_THAT(failure_with(config, took),
                AllOf(HasSubstr("rank " + std::to_string(rank) + " of 2"),
                      HasSubstr("has finished no step for 1.0 s: phase submitting, step 3")));
    EXPECT_LT(took, std::chrono::seconds(2));
  }
  EXPECT_TRUE(rank_processes().empty());
}

TEST(MpExecutorFaults, ARankThatIsStuckInAStepFailsTheRestAfterTheStallTimeout) {
  const ScopedFault fault("stuck", 1);
  EngineConfig config = ranks_config(2);
  config.stall_timeout = 1;
  std::unique_ptr<Executor> executor = make_executor(config);
  Clock::duration took{};
  EXPECT_THAT(failure_of(*executor, took),
              AllOf(HasSubstr("rank 1 of 2"),
                    HasSubstr("has finished no step for 1.0 s: phase submitting, step 3")));
  EXPECT_LT(took, std::chrono::seconds(2));
  const Clock::time_point begin = Clock::now();
  executor.reset();
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
  EXPECT_TRUE(rank_processes().empty());
}

}  // namespace
}  // namespace warprow
