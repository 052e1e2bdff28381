// SPDX-License-Identifier: Apache-2.0
// Ranks that a launcher started: how they find each other and agree, their steps and operations, and what becomes of the
// others when one fails.
#include "executor/external/rank_meeting.h"
#include "executor/make_executor.h"
#include "tests/executor/executor_faults.h"
#include "tests/executor/launched_ranks.h"
#include "tests/executor/step_cost.h"
#include "tests/executor/tiny_config.h"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
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
using test::LaunchedRanks;
using test::run_empty_step;
using test::ScopedFault;
using test::start_error_of;
using namespace std::chrono_literals;

EngineConfig launched_config(int32_t tensor_size,
                             int32_t pipeline_size,
                             const std::string& transport = "auto") {
  EngineConfig config = test::tiny_config();
  config.dtype = "float32";
  config.tensor_parallel_size = tensor_size;
  config.pipeline_parallel_size = pipeline_size;
  config.distributed_executor_backend = "external_launcher";
  config.rank_transport = transport;
  config.join_timeout = 20;
  config.worker_binary =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "rank_process";
  return config;
}

// What lies in /dev/shm, but for objects of other processes that run (warprow.PID.NUMBER): other tests, which come and go.
std::set<std::string> shared_objects() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename();
    pid_t pid = 0;
    const bool has_owner = std::sscanf(name.c_str(), "warprow.%d.", &pid) == 1;
    if (!has_owner || pid == ::getpid() || ::kill(pid, 0) != 0) {
      names.insert(name);
    }
  }
  return names;
}

struct Shape {
  int32_t tensor_size;
  int32_t pipeline_size;
  const char* transport;
};

class ExternalExecutor : public ::testing::TestWithParam<Shape> {
 protected:
  static EngineConfig config() {
    return launched_config(GetParam().tensor_size, GetParam().pipeline_size, GetParam().transport);
  }
};
INSTANTIATE_TEST_SUITE_P(Shapes,
                         ExternalExecutor,
                         ::testing::Values(Shape{1, 1, "auto"},
                                           Shape{2, 1, "auto"},
                                           Shape{2, 1, "tcp"},
                                           Shape{1, 2, "auto"},
                                           Shape{1, 2, "tcp"},
                                           Shape{2, 2, "tcp"}));

TEST_P(ExternalExecutor, RunsStepsInOrderAndAnswersOperations) {
  const std::set<std::string> objects = shared_objects();
  LaunchedRanks ranks(config());
  const int32_t num_ranks = GetParam().tensor_size * GetParam().pipeline_size;
  std::unique_ptr<Executor> executor = make_executor(config());
  EXPECT_EQ(executor->model_facts().max_num_seqs, 4);
  EXPECT_EQ(executor->call(CheckHealth{}).get(),
            std::vector<std::string>(static_cast<size_t>(num_ranks), "ok"));
  EXPECT_EQ(executor->call(CheckHealth{}, RankSet::only(num_ranks - 1)).get(),
            std::vector<std::string>{"ok"});
  ModelRunnerOutput output;
  for (int64_t step = 1; step <= 20; ++step) {
    run_empty_step(*executor, step);
    executor->take_output(output);
    EXPECT_EQ(output.step, step);
  }
  EXPECT_EQ(executor->stats().steps, 20);
  EXPECT_EQ(executor->call(SleepRanks{1}).get().size(), static_cast<size_t>(num_ranks));
  EXPECT_EQ(executor->call(WakeRanks{}).get().size(), static_cast<size_t>(num_ranks));
  executor.reset();
  for (int32_t rank = 1; rank < num_ranks; ++rank) {
    EXPECT_EQ(ranks.exit_code(rank, 3s), 0) << rank;
  }
  EXPECT_EQ(shared_objects(), objects);
}

// The way of a step to the ranks and back, without a forward.
TEST_P(ExternalExecutor, WhatAStepCosts) {
  const LaunchedRanks ranks(config());
  const std::unique_ptr<Executor> executor = make_executor(config());
  std::printf("an empty step with %d x %d ranks, %s: %.1f us\n",
              GetParam().tensor_size,
              GetParam().pipeline_size,
              GetParam().transport,
              test::empty_step_us(*executor, 300));
}

TEST(ExternalStart, RanksThatAreMissingAreNamed) {
  EngineConfig config = launched_config(2, 1);
  LaunchedRanks ranks(config);
  ::kill(ranks.pid(1), SIGKILL);
  ranks.exit_code(1, 1s);
  config.join_timeout = 1;
  const StartupError error = start_error_of(config);
  EXPECT_EQ(error.code(), ErrorCode::kBusy);
  EXPECT_THAT(error.what(), HasSubstr("rank 1 of 2 did not come within 1000ms"));
}

TEST(ExternalStart, ADisagreementNamesTheSettingAndBothValues) {
  const EngineConfig config = launched_config(2, 1);
  LaunchedRanks ranks(config, {"max-num-seqs=8"});
  const StartupError error = start_error_of(config);
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what(),
              AllOf(HasSubstr("max-num-seqs: '4' on rank 0"), HasSubstr("'8' on rank 1")));
  EXPECT_EQ(ranks.exit_code(1, 5s), 5);
}

TEST(ExternalStart, ARankForAnotherNumberOfRanksIsRefused) {
  const EngineConfig config = launched_config(2, 1);
  const LaunchedRanks ranks(config);
  ::setenv("WORLD_SIZE", "3", 1);
  EXPECT_THAT(start_error_of(config).what(),
              HasSubstr("WORLD_SIZE is 3, but --tensor-parallel-size 2"));
}

TEST(ExternalStart, ARankThatCannotLoadSaysWhyToRank0) {
  const ScopedFault fault("loading", 1);
  const EngineConfig config = launched_config(2, 1);
  LaunchedRanks ranks(config);
  EXPECT_STREQ(start_error_of(config).what(), "rank 1: these weights are refused");
  EXPECT_EQ(ranks.exit_code(1, 5s), 5);
}

TEST(ExternalStart, Rank0ThatCannotLoadEndsTheOthers) {
  const ScopedFault fault("loading", 0);
  const EngineConfig config = launched_config(2, 1);
  LaunchedRanks ranks(config);
  EXPECT_STREQ(start_error_of(config).what(), "rank 0: these weights are refused");
  EXPECT_EQ(ranks.exit_code(1, 5s), 5);
}

// How an executor with this fault fails; the other ranks end with it.
void expect_failure(const EngineConfig& config,
                    const std::string& fault,
                    int32_t rank,
                    const std::string& why,
                    Clock::duration within) {
  const ScopedFault scoped(fault, rank);
  LaunchedRanks ranks(config);
  std::unique_ptr<Executor> executor = make_executor(config);
  Clock::duration took{};
  EXPECT_THAT(failure_of(*executor, took),
              AllOf(HasSubstr("rank " + std::to_string(rank) + " of 2"), HasSubstr(why)));
  EXPECT_LT(took, within);
  const std::optional<int> code = ranks.exit_code(1, 5s);
  EXPECT_TRUE(code == 5 || (rank == 1 && code == 128 + SIGKILL)) << code.value_or(-1);
}

TEST(ExternalFaults, ARankThatThrowsInAStepSaysWhy) {
  for (const char* transport : {"auto", "tcp"}) {
    expect_failure(launched_config(2, 1, transport), "throw", 1, "this step is refused", 2s);
  }
  expect_failure(launched_config(1, 2, "tcp"), "throw", 0, "this step is refused", 2s);
}

TEST(ExternalFaults, AKilledRankFailsTheRestWithinASecond) {
  for (const int32_t rank : {0, 1}) {
    for (const char* transport : {"auto", "tcp"}) {
      expect_failure(launched_config(2, 1, transport),
                     "killed",
                     rank,
                     rank == 0 ? "ended with signal 9 (Killed)" : ") ended in phase",
                     1s);
    }
  }
}

TEST(ExternalFaults, ARankThatIsStuckFailsTheRestAfterTheStallTimeout) {
  EngineConfig config = launched_config(2, 1, "tcp");
  config.stall_timeout = 1;
  expect_failure(
      config, "stuck", 1, "has finished no step for 1.0 s: phase submitting, step 3", 3s);
}

TEST(ExternalFaults, ResultsThatDifferNameStepAndField) {
  const ScopedFault fault("differs", 1);
  const EngineConfig config = launched_config(2, 1, "tcp");
  LaunchedRanks ranks(config);
  const std::unique_ptr<Executor> executor = make_executor(config);
  Clock::duration took{};
  EXPECT_THAT(failure_of(*executor, took), HasSubstr("step 3: the hash of token_ids is "));
  EXPECT_LT(took, 2s);
  EXPECT_EQ(ranks.exit_code(1, 5s), 5);
}

std::vector<Introduction> two_introductions() {
  Introduction one;
  one.settings = {{"version", "1"}, {"dtype", "auto"}};
  one.where = "process 1 on a";
  Introduction two = one;
  two.where = "process 2 on b";
  return {one, two};
}

TEST(RankMeeting, AgreementIsEqualSettings) {
  EXPECT_EQ(disagreement(two_introductions()), "");
  std::vector<Introduction> ranks = two_introductions();
  ranks[1].settings[1].text = "float32";
  EXPECT_EQ(disagreement(ranks),
            "dtype: 'auto' on rank 0 (process 1 on a), 'float32' on rank 1 (process 2 on b); it "
            "must be equal");
  ranks = two_introductions();
  ranks[1].settings[0].text = "2";
  EXPECT_THAT(disagreement(ranks), HasSubstr("version: '1' on rank 0"));
  ranks = two_introductions();
  ranks[1].settings.pop_back();
  EXPECT_THAT(disagreement(ranks), HasSubstr("rank 1 knows 1 settings and rank 0 2"));
  ranks = two_introductions();
  ranks[1].settings[1].name = "other";
  EXPECT_THAT(disagreement(ranks), HasSubstr("other instead of dtype"));
}

// Threads, devices and logs are a rank's own; all that decides about steps must be equal.
TEST(RankMeeting, AnIntroductionHasTheSettingsOfAllRanks) {
  EngineConfig config = test::tiny_config();
  std::vector<Introduction> ranks = {introduce(config)};
  config.threads = 7;
  config.device_ids = "1";
  config.log_level = "debug";
  ranks.push_back(introduce(config));
  EXPECT_EQ(disagreement(ranks), "");
  config.seed = 3;
  ranks.back() = introduce(config);
  EXPECT_THAT(disagreement(ranks), HasSubstr("seed: '0' on rank 0"));
}

TEST(RankMeeting, AnIntroductionThatIsCutIsRefused) {
  const std::string bytes = encode(introduce(test::tiny_config()));
  ASSERT_TRUE(decode_introduction(bytes));
  for (size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_FALSE(decode_introduction(bytes.substr(0, n))) << n;
  }
  EXPECT_FALSE(decode_introduction(bytes + "x"));
}

}  // namespace
}  // namespace warprow
