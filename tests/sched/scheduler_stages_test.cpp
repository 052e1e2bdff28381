// SPDX-License-Identifier: Apache-2.0
// Steps of a pipeline: as many as there are stages run at once, each of other rows.
#include "tests/sched/scheduler_rig.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::small_config;
using testing::tokens_from;
using Bench = testing::SchedulerRig;

SchedulerConfig stages(int32_t num_stages, bool plans_ahead) {
  SchedulerConfig config = small_config();
  config.num_stages = num_stages;
  config.max_concurrent_steps = num_stages + (plans_ahead ? 1 : 0);
  return config;
}

std::vector<int32_t> rows(const SchedulerOutput& step) {
  std::vector<int32_t> rows;
  rows.reserve(step.scheduled.size());
  for (const ScheduledRow& row : step.scheduled) {
    rows.push_back(index_of(row.row));
  }
  return rows;
}

// Requests 0 to count - 1 in the rows of these numbers; their prompts are computed in one step, which is taken.
void start(Bench& bench, int32_t count) {
  for (int32_t id = 0; id < count; ++id) {
    bench.add(static_cast<uint64_t>(id), tokens_from(10 * id, 3));
  }
  ASSERT_TRUE(bench.run_step());
  ASSERT_THAT(rows(bench.step), ::testing::SizeIs(count));
}

TEST(SchedulerStages, DecodingRowsAreDividedBetweenTheSteps) {
  Bench bench(stages(2, true));
  start(bench, 5);
  ASSERT_TRUE(bench.launch());
  EXPECT_THAT(rows(bench.step), ElementsAre(0, 1, 2));
  EXPECT_EQ(bench.step.results_through, 1);
  ASSERT_TRUE(bench.launch());
  EXPECT_THAT(rows(bench.step), ElementsAre(3, 4));
  EXPECT_EQ(bench.step.results_through, 1);
  // One more waits before the first stage, for the results of the first of the two.
  ASSERT_TRUE(bench.launch());
  EXPECT_THAT(rows(bench.step), ElementsAre(0, 1, 2));
  EXPECT_EQ(bench.step.results_through, 2);
  EXPECT_FALSE(bench.launch()) << "three steps are in flight";
  bench.collect();
  ASSERT_TRUE(bench.launch());
  EXPECT_THAT(rows(bench.step), ElementsAre(3, 4));
  EXPECT_EQ(bench.step.results_through, 3);
}

TEST(SchedulerStages, WithoutPlanningAheadARowWaitsForItsLastToken) {
  Bench bench(stages(2, false));
  start(bench, 3);
  ASSERT_TRUE(bench.launch());
  EXPECT_THAT(rows(bench.step), ElementsAre(0, 1));
  ASSERT_TRUE(bench.launch());
  EXPECT_THAT(rows(bench.step), ElementsAre(2));
  EXPECT_FALSE(bench.launch());
  bench.collect();
  ASSERT_TRUE(bench.launch());
  EXPECT_THAT(rows(bench.step), ElementsAre(0, 1));
  EXPECT_EQ(bench.step.results_through, 2);
}

// Nothing else could run meanwhile.
TEST(SchedulerStages, ALoneRequestIsPlannedAhead) {
  Bench bench(stages(3, true));
  start(bench, 1);
  for (int64_t through = 1; through <= 4; ++through) {
    ASSERT_TRUE(bench.launch());
    EXPECT_THAT(rows(bench.step), ElementsAre(0));
    EXPECT_EQ(bench.step.results_through, through);
  }
  EXPECT_FALSE(bench.launch());
}

// Chunks of one prompt follow each other from stage to stage.
TEST(SchedulerStages, ChunksOfAPromptDoNotWait) {
  Bench bench(stages(2, false));
  bench.add(1, tokens_from(0, 150));
  ASSERT_TRUE(bench.launch());
  ASSERT_TRUE(bench.launch());
  EXPECT_EQ(bench.plan(), (std::vector<std::pair<int32_t, int32_t>>{{64, 64}}));
  EXPECT_EQ(bench.step.results_through, 0);
}

// The last stage tells which tokens of a withheld row do not count.
TEST(SchedulerStages, AWithheldRowNeedsTheResultsOfItsStep) {
  Bench bench(stages(2, true));
  Request request;
  request.id = 1;
  request.prompt = tokens_from(0, 5);
  request.grammar = 0;
  bench.add(request);
  ASSERT_TRUE(bench.scheduler.schedule(bench.step));
  bench.scheduler.withhold(RowId{0});
  bench.scheduler.resume(1);
  ASSERT_TRUE(bench.scheduler.schedule(bench.step));
  EXPECT_THAT(rows(bench.step), ElementsAre(0));
  EXPECT_EQ(bench.step.results_through, 1);
}

TEST(SchedulerStages, AStepThatOnlyReleasesRowsNeedsWhatTheHostHas) {
  Bench bench(stages(2, true));
  start(bench, 1);
  bench.scheduler.abort_request(0);
  ASSERT_TRUE(bench.launch());
  EXPECT_THAT(rows(bench.step), IsEmpty());
  EXPECT_EQ(bench.step.results_through, 1);
}

}  // namespace
}  // namespace warprow
