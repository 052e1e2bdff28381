// SPDX-License-Identifier: Apache-2.0
// What the last stage of a pipeline tells the others, and what they make of it.
#include "runner/ops/stage_results.h"

#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

constexpr int64_t kMaxDrafts = 2;
constexpr int64_t kStride = StageResult::kWords + kMaxDrafts;

RowState state_of(uint32_t generation, int32_t total_len, int32_t computed, int32_t last_sampled) {
  RowState state;
  state.generation = generation;
  state.total_len = total_len;
  state.num_computed_tokens = computed;
  state.last_sampled = last_sampled;
  return state;
}

struct Stage {
  std::vector<RowState> rows;
  std::vector<int32_t> drafts;

  explicit Stage(std::vector<RowState> states)
      : rows(std::move(states)), drafts(rows.size() * kMaxDrafts, -1) {}
  [[nodiscard]] DraftTokens draft_tokens() { return {drafts.data(), kMaxDrafts}; }
};

// Row 2 verified two drafts and accepted one, row 0 computed a chunk of its prompt, row 1 was withheld.
class StageResultsTest : public ::testing::Test {
 protected:
  StageResultsTest() {
    step_.idx_mapping = idx_mapping_.data();
    step_.query_start_loc = query_start_loc_.data();
    last_.drafts = {-1, -1, -1, -1, 71, 72};
    step_.rows = last_.rows.data();
    const PackResults pack{
        step_, num_sampled_.data(), num_rejected_.data(), last_.draft_tokens(), results_};
    for (int64_t i = 0; i < 3; ++i) {
      pack(i);
    }
  }

  // A stage that was where the last one was before the step.
  void run_step(Stage& stage) {
    step_.rows = stage.rows.data();
    for (int64_t i = 0; i < 3; ++i) {
      AdvanceRows{step_}(i);
    }
  }
  void apply(Stage& stage) const {
    for (int64_t i = 0; i < 3; ++i) {
      ApplyResults{results_, stage.rows.data(), stage.draft_tokens()}(i);
    }
  }

  std::vector<int32_t> idx_mapping_ = {2, 0, 1};
  std::vector<int32_t> query_start_loc_ = {0, 3, 8, 9};
  std::vector<int32_t> num_sampled_ = {2, 0, 0};
  std::vector<int32_t> num_rejected_ = {1, 0, 1};
  StepRows step_;
  // After the step.
  Stage last_{{state_of(4, 20, 5, 0), state_of(1, 6, 5, 9), state_of(7, 12, 11, 33)}};
  std::vector<int32_t> words_ = std::vector<int32_t>(3 * kStride);
  StageResults results_{words_.data(), kStride};
};

TEST_F(StageResultsTest, AStageComesWhereTheLastOneIs) {
  Stage stage({state_of(4, 20, 0, 0), state_of(1, 6, 5, 9), state_of(7, 10, 9, 31)});
  run_step(stage);
  EXPECT_EQ(stage.rows[0].num_computed_tokens, 5);
  EXPECT_EQ(stage.rows[1].num_computed_tokens, 6) << "all tokens count until the results say more";
  EXPECT_EQ(stage.rows[2].num_computed_tokens, 12);
  apply(stage);
  for (size_t row = 0; row < 3; ++row) {
    EXPECT_EQ(stage.rows[row].num_computed_tokens, last_.rows[row].num_computed_tokens) << row;
    EXPECT_EQ(stage.rows[row].total_len, last_.rows[row].total_len) << row;
    EXPECT_EQ(stage.rows[row].last_sampled, last_.rows[row].last_sampled) << row;
  }
  EXPECT_EQ(stage.drafts, last_.drafts);
}

// Row 2 was given to another request before the results came.
TEST_F(StageResultsTest, ResultsOfAnEarlierRequestAreDropped) {
  Stage stage({state_of(4, 20, 0, 0), state_of(1, 6, 5, 9), state_of(8, 3, 0, 0)});
  apply(stage);
  EXPECT_EQ(stage.rows[2].num_computed_tokens, 0);
  EXPECT_EQ(stage.rows[2].total_len, 3);
  EXPECT_EQ(stage.rows[2].last_sampled, 0);
  EXPECT_EQ(stage.drafts, (std::vector<int32_t>{-1, -1, -1, -1, -1, -1}));
}

}  // namespace
}  // namespace warprow
