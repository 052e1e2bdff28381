// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"
#include "executor/make_executor.h"
#include "tests/executor/tiny_config.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

TEST(UniprocExecutor, AnOperationHasRunWhenCallReturns) {
  const std::unique_ptr<Executor> executor = make_executor(test::tiny_config());
  RankAnswers<CheckHealth> answers = executor->call(CheckHealth{}, RankSet::only(0));
  EXPECT_TRUE(answers.ready());
  EXPECT_EQ(answers.get(), std::vector<std::string>{"ok"});
  EXPECT_EQ(executor->call(ReadAttentionBackends{}).get(), std::vector<std::string>{"cpu_paged"});
  const ScopedCheckThrows throws;
  EXPECT_THROW(executor->call(CheckHealth{}, RankSet::only(1)), CheckFailure);
  EXPECT_THROW(executor->collective_rpc("nonesuch", "", RankSet::all()), CheckFailure);
}

std::string refusal_of(const EngineConfig& config) {
  try {
    make_executor(config);
  } catch (const StartupError& error) {
    return error.what();
  }
  return "no error";
}

TEST(UniprocExecutor, SeveralRanksAreRefused) {
  EngineConfig config = test::tiny_config();
  config.tensor_parallel_size = 2;
  config.distributed_executor_backend = "uni";
  EXPECT_EQ(refusal_of(config),
            "--distributed-executor-backend: uni runs one rank, and --tensor-parallel-size is 2; "
            "use mp");
}

TEST(UniprocExecutor, StagesAreRefused) {
  EngineConfig config = test::tiny_config();
  config.pipeline_parallel_size = 2;
  config.distributed_executor_backend = "uni";
  EXPECT_EQ(refusal_of(config),
            "--distributed-executor-backend: uni runs one rank, and --pipeline-parallel-size is 2; "
            "use mp");
}

TEST(MakeExecutor, TooManyRanksAreRefused) {
  EngineConfig config = test::tiny_config();
  config.tensor_parallel_size = 16;
  config.pipeline_parallel_size = 8;
  EXPECT_EQ(refusal_of(config),
            "--pipeline-parallel-size: 8 stages of 16 ranks each are 128 ranks; at most 64 are "
            "supported");
}

// The worker runs on the caller's thread, so no other thread could announce an output or wait for one.
TEST(UniprocExecutor, OutputsAreWaitedForInTakeOutput) {
  const std::unique_ptr<Executor> executor = make_executor(test::tiny_config());
  WakeUp wake_up;
  EXPECT_FALSE(executor->set_wake_up(&wake_up));
  EXPECT_FALSE(executor->idle_step());
  SchedulerOutput step;
  step.step = 1;
  executor->execute_model(step);
  executor->sample_tokens(nullptr);
  ModelRunnerOutput output;
  executor->take_output(output);
  EXPECT_EQ(output.step, 1);
  EXPECT_EQ(executor->num_outstanding(), 0);
}

}  // namespace
}  // namespace warprow
