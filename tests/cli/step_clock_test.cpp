// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/step_clock.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

// Only counts: each step costs 3 driver calls, and each output reports 5 us of waiting.
class CountingExecutor final : public Executor {
 public:
  explicit CountingExecutor(std::vector<std::string>& calls) : calls_(calls) {}
  [[nodiscard]] const ModelFacts& model_facts() const override { return facts_; }
  [[nodiscard]] int32_t max_concurrent_batches() const override { return 2; }
  void execute_model(const SchedulerOutput& step) override {
    stats_.driver_calls += 3;
    calls_.push_back("execute " + std::to_string(step.step));
  }
  void sample_tokens(const GrammarOutput* /*grammar*/) override { ++outstanding_; }
  [[nodiscard]] int32_t num_outstanding() const override { return outstanding_; }
  [[nodiscard]] bool output_ready() const override { return true; }
  void take_output(ModelRunnerOutput& /*output*/) override {
    --outstanding_;
    stats_.output_wait_ns += 5000;
  }
  RankReplies collective_rpc(std::string_view operation,
                             const std::string& argument,
                             RankSet /*ranks*/) override {
    calls_.push_back(std::string(operation) + " " + argument);
    std::promise<std::vector<std::string>> replies;
    replies.set_value({operation == "step_times" ? "[[0,3],[4,7]]" : "ok"});
    return replies.get_future();
  }
  [[nodiscard]] ExecutorStats stats() const override { return stats_; }

 private:
  ModelFacts facts_;
  std::vector<std::string>& calls_;
  int32_t outstanding_ = 0;
  ExecutorStats stats_;
};

// Runs steps in which num_rows rows advance by tokens_each, one step ahead like the engine.
void run_steps(
    Executor& executor, int64_t& step, int count, int32_t num_rows, int32_t tokens_each) {
  for (int i = 0; i < count; ++i) {
    SchedulerOutput output;
    output.step = step++;
    for (int32_t row = 0; row < num_rows; ++row) {
      output.scheduled.push_back({RowId{row}, tokens_each, 10});
    }
    output.total_num_tokens = num_rows * tokens_each;
    executor.execute_model(output);
    executor.sample_tokens(nullptr);
    ModelRunnerOutput taken;
    while (executor.num_outstanding() > 1) {
      executor.take_output(taken);
    }
  }
}

class StepClock : public ::testing::Test {
 protected:
  StepRecord record_{.num_rows = 3, .num_warmup = 2, .num_steps = 4};
  std::vector<std::string> calls_;
  int64_t step_ = 0;
};

TEST_F(StepClock, MeasuresSteadyStepsBehindTheWarmUp) {
  const auto clock = make_step_clock(std::make_unique<CountingExecutor>(calls_), record_);
  run_steps(*clock, step_, 2, 3, 5);   // prefill
  run_steps(*clock, step_, 20, 3, 1);  // decode
  ASSERT_EQ(record_.samples.size(), 4);
  for (const StepSample& sample : record_.samples) {
    EXPECT_EQ(sample.context_len, 11);
    EXPECT_DOUBLE_EQ(sample.wait_us, 5);
    EXPECT_GT(sample.wall_us, 0);
    EXPECT_NEAR(sample.host_us() + sample.wait_us, sample.wall_us, 1e-6);
  }
  EXPECT_EQ(record_.after.driver_calls - record_.before.driver_calls, 4 * 3);
}

TEST_F(StepClock, TimesOnTheDeviceAsManyStepsBehindTheSamples) {
  const auto clock = make_step_clock(std::make_unique<CountingExecutor>(calls_), record_);
  run_steps(*clock, step_, 20, 3, 1);
  EXPECT_EQ(record_.device_times, "[[0,3],[4,7]]");
  // Steps 0 and 1 warm up, 2 to 5 are samples, 6 to 9 are timed.
  const std::vector<std::string> begin(calls_.begin() + 5, calls_.begin() + 13);
  EXPECT_EQ(begin,
            (std::vector<std::string>{"execute 5",
                                      "time_steps 4",
                                      "execute 6",
                                      "execute 7",
                                      "execute 8",
                                      "execute 9",
                                      "step_times ",
                                      "execute 10"}));
}

TEST_F(StepClock, OtherStepsAreNoSamples) {
  const auto clock = make_step_clock(std::make_unique<CountingExecutor>(calls_), record_);
  run_steps(*clock, step_, 10, 2, 1);
  run_steps(*clock, step_, 10, 3, 2);
  EXPECT_TRUE(record_.samples.empty());
  EXPECT_TRUE(record_.device_times.empty());
}

}  // namespace
}  // namespace warprow
