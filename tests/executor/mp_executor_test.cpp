// SPDX-License-Identifier: Apache-2.0
// Ranks in processes of their own: their start, steps and operations, and what becomes of the others when one fails.
#include "base/error.h"
#include "executor/make_executor.h"
#include "tests/support/source_path.h"

#include <chrono>
#include <csignal>
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

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

EngineConfig tiny_config(int32_t num_ranks) {
  EngineConfig config;
  config.model = test::source_path("tests/golden/tiny/llama_gqa_tied");
  config.device = "cpu";
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 32;
  config.kv_cache_memory_bytes = 1 << 20;
  config.threads = 1;
  config.dtype = "float32";
  config.tensor_parallel_size = num_ranks;
  config.distributed_executor_backend = "mp";
  config.worker_binary = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "rank_process";
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

void run_empty_step(Executor& executor, int64_t number) {
  SchedulerOutput step;
  step.step = number;
  executor.execute_model(step);
  executor.sample_tokens(nullptr);
}

// What the executor says when it has failed, and how long it took to.
std::string failure_of(Executor& executor, Clock::duration& took) {
  const Clock::time_point begin = Clock::now();
  std::string why;
  ModelRunnerOutput output;
  for (int64_t step = 1; why.empty() && Clock::now() - begin < std::chrono::seconds(20); ++step) {
    try {
      run_empty_step(executor, step);
      executor.take_output(output);
    } catch (const std::runtime_error& error) {
      why = error.what();
    }
  }
  took = Clock::now() - begin;
  return why;
}

class MpExecutor : public ::testing::TestWithParam<int32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, MpExecutor, ::testing::Values(1, 2));

TEST_P(MpExecutor, RunsStepsInOrderAndAnswersOperations) {
  const std::unique_ptr<Executor> executor = make_executor(tiny_config(GetParam()));
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

TEST_P(MpExecutor, EndsItsProcesses) {
  std::unique_ptr<Executor> executor = make_executor(tiny_config(GetParam()));
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
  EngineConfig config = tiny_config(GetParam());
  config.kv_cache_memory_bytes = 1024;
  try {
    make_executor(config);
    FAIL() << "no error";
  } catch (const StartupError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_THAT(error.what(), HasSubstr("kv_cache_memory_bytes is 1024"));
  }
  EXPECT_TRUE(rank_processes().empty());
}

TEST_P(MpExecutor, AMissingWorkerBinaryIsNamed) {
  EngineConfig config = tiny_config(GetParam());
  config.worker_binary = "/nonesuch/worker";
  try {
    make_executor(config);
    FAIL() << "no error";
  } catch (const StartupError& error) {
    EXPECT_THAT(error.what(), HasSubstr("worker-binary: cannot start /nonesuch/worker"));
  }
}

TEST_P(MpExecutor, AKilledRankFailsTheRestWithinASecond) {
  const std::unique_ptr<Executor> executor = make_executor(tiny_config(GetParam()));
  ::kill(rank_processes().back(), SIGKILL);
  Clock::duration took{};
  EXPECT_THAT(failure_of(*executor, took), HasSubstr("ended with signal 9 (Killed) in phase"));
  EXPECT_LT(took, std::chrono::seconds(1));
}

TEST_P(MpExecutor, AStoppedRankFailsTheRestWithinASecond) {
  const std::unique_ptr<Executor> executor = make_executor(tiny_config(GetParam()));
  ::kill(rank_processes().back(), SIGSTOP);
  Clock::duration took{};
  EXPECT_THAT(failure_of(*executor, took), HasSubstr("is stopped in phase"));
  EXPECT_LT(took, std::chrono::seconds(1));
}

}  // namespace
}  // namespace warprow
