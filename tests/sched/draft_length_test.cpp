// SPDX-License-Identifier: Apache-2.0
#include "sched/draft_length.h"

#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using Tokens = std::vector<TokenId>;

// A row that drafts nothing, whose drafts would have been right or wrong.
void watch(DraftRecord& record, int32_t steps, bool right) {
  for (int32_t i = 0; i < steps; ++i) {
    record.take(Tokens{7}, 0, Tokens{right ? 7 : -1});
  }
}

TEST(DraftLength, ATokenCostsMoreInALargeBatch) {
  EXPECT_DOUBLE_EQ(draft_cost_beside(0.25, 1), 0.25);
  EXPECT_DOUBLE_EQ(draft_cost_beside(0.25, 5), 0.625);
  EXPECT_LT(draft_cost_beside(0.25, 1000), 1.0);
  EXPECT_DOUBLE_EQ(draft_cost_beside(1.0, 7), 1.0) << "no gain from a batch";
}

TEST(DraftLength, AStepStaysWithinOnePass) {
  EXPECT_EQ(most_drafts_beside(1, 16), 7);
  EXPECT_EQ(most_drafts_beside(1, 4), 4);
  EXPECT_EQ(most_drafts_beside(2, 16), 3);
  EXPECT_EQ(most_drafts_beside(3, 16), 1);
  EXPECT_EQ(most_drafts_beside(8, 16), 0);
  EXPECT_EQ(most_drafts_beside(9, 16), 16) << "two passes in any case";
}

TEST(DraftLength, AStepOfAGpuIsFlatThenLinear) {
  EXPECT_LT(gpu_step_time(180, 64), 1.02);
  EXPECT_NEAR(gpu_step_time(180, 1800), 10.0, 0.01);
}

TEST(DraftLength, RowsOfAStepDraftEquallyMany) {
  const auto common = [](double acceptance, int32_t num_rows, int32_t before = 0) {
    const std::vector<double> rows(static_cast<size_t>(num_rows), acceptance);
    return common_drafts(rows, num_rows, {180, 0}, 7, before);
  };
  EXPECT_EQ(common(0.9, 1), 7);
  EXPECT_EQ(common(0.0, 1), 0);
  EXPECT_EQ(common(0.7, 32), 4) << "256 tokens take longer than 160";
  EXPECT_EQ(common(0.7, 64), 1);
  EXPECT_EQ(common(0.7, 512), 0) << "every token costs its full share";
  EXPECT_EQ(common(0.9, 16), 7);
  // One row that repeats itself does not make a hundred others wait for it.
  std::vector<double> rows(100, 0.0);
  rows[7] = 0.95;
  EXPECT_EQ(common_drafts(rows, 100, {180, 0}, 7, 0), 0);
  // A length stays unless another is clearly better.
  EXPECT_EQ(common(0.03, 4, 1), 1);
  EXPECT_EQ(common(0.03, 4, 0), 0);
}

// A forward may take a tenth of a step, a third, or more than a step.
TEST(DraftLength, AModelsForwardsCostTime) {
  const std::vector<double> rows(4, 0.7);
  EXPECT_EQ(common_drafts(rows, 4, {180, 0.1}, 7, 0), 4);
  EXPECT_EQ(common_drafts(rows, 4, {180, 0.33}, 7, 0), 1);
  EXPECT_EQ(common_drafts(rows, 4, {180, 1.5}, 7, 0), 0);
}

TEST(DraftLength, InALargeBatchNoDraftPays) {
  EXPECT_TRUE(drafts_may_pay(1, {180, 0.05}));
  EXPECT_TRUE(drafts_may_pay(128, {180, 0.05}));
  EXPECT_FALSE(drafts_may_pay(256, {180, 0.05}));
  EXPECT_FALSE(drafts_may_pay(1, {180, 1.0}));
}

TEST(DraftLength, ANewRowDraftsNothing) {
  DraftRecord record;
  EXPECT_EQ(record.decide(0.01, 4), 0);
  record.take(Tokens{7}, 0, Tokens{8});
  EXPECT_EQ(record.acceptance(), 0) << "nothing had been proposed for the first token";
}

TEST(DraftLength, DraftsThatNoStepVerifiedCountToo) {
  DraftRecord record;
  watch(record, 10, true);
  EXPECT_GT(record.acceptance(), 0.7);
  EXPECT_GT(record.decide(0.25, 4), 1);
  watch(record, 20, false);
  EXPECT_LT(record.acceptance(), 0.1);
  EXPECT_EQ(record.decide(0.25, 4), 0);
}

TEST(DraftLength, VerifiedDraftsCountUpToTheFirstWrongOne) {
  DraftRecord verified;
  verified.take(Tokens{1, 2, 3}, 4, Tokens{9});  // two right, one wrong, one unknown
  DraftRecord watched;
  watch(watched, 1, true);  // no draft is known for the first token
  watched.take(Tokens{7}, 0, Tokens{7});
  watched.take(Tokens{7}, 0, Tokens{9});
  watched.take(Tokens{7}, 0, Tokens{9});
  EXPECT_DOUBLE_EQ(verified.acceptance(), watched.acceptance());
  verified.take(Tokens{9, 9, 9}, 2, {});
  EXPECT_GT(verified.acceptance(), watched.acceptance()) << "all right: no wrong one";
}

TEST(DraftLength, GrowsWithTheAcceptanceAndShrinksWithTheCost) {
  DraftRecord record;
  int32_t before = 0;
  for (int32_t i = 0; i < 40; ++i) {
    watch(record, 1, true);
    const int32_t length = record.decide(0.2, 8);
    EXPECT_GE(length, before);
    before = length;
  }
  EXPECT_EQ(before, 8);
  watch(record, 3, false);
  EXPECT_GT(record.decide(0.2, 8), 0);
  EXPECT_LT(record.decide(0.2, 8), 8);
  EXPECT_EQ(record.decide(0.95, 8), 0);
}

TEST(DraftLength, StaysWhereTheDifferenceIsSmall) {
  DraftRecord record;
  watch(record, 6, true);  // about 0.56: above a cost of 0.5, but not clearly
  EXPECT_EQ(record.decide(0.5, 4), 0);
  EXPECT_EQ(record.decide(0.3, 4), 1);
  EXPECT_EQ(record.decide(0.5, 4), 1) << "it has begun, and the cost is not clearly above";
  EXPECT_EQ(record.decide(0.9, 4), 0);
}

TEST(DraftLength, AFailedStepTeachesNothing) {
  DraftRecord record;
  watch(record, 10, true);
  const double before = record.acceptance();
  record.take({}, 3, {});
  EXPECT_EQ(record.acceptance(), before);
}

}  // namespace
}  // namespace warprow
