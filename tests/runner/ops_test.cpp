// SPDX-License-Identifier: Apache-2.0
#include "tests/runner/step_fixture.h"

#include <numeric>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using Ints = std::vector<int32_t>;
using test::StepFixture;

// Runs the operations in order, or with rows and lanes shuffled. The result must not depend on the order.
class RunnerOpsTest : public ::testing::TestWithParam<bool> {
 protected:
  StepFixture fixture{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Order, RunnerOpsTest, ::testing::Bool(), [](const auto& order) {
  return order.param ? "shuffled" : "in_order";
});

RowState row_state(int32_t prompt_len,
                   int32_t computed,
                   int32_t last_sampled = 0,
                   int32_t total_len = 0) {
  RowState state;
  state.prompt_len = prompt_len;
  state.prefill_len = prompt_len;
  state.total_len = total_len > 0 ? total_len : prompt_len;
  state.num_computed_tokens = computed;
  state.last_sampled = last_sampled;
  return state;
}

TEST_P(RunnerOpsTest, ADecodesWhileBStarts) {
  fixture.add(row_state(4, 4, 104, 5), {100, 101, 102, 103}, 1);
  fixture.add(row_state(3, 0), {200, 201, 202}, 3);
  fixture.prepare();
  EXPECT_EQ(fixture.input_ids, (Ints{104, 200, 201, 202}));
  EXPECT_EQ(fixture.positions, (Ints{4, 0, 1, 2}));
  EXPECT_EQ(fixture.query_start_loc, (Ints{0, 1, 4}));
  EXPECT_EQ(fixture.seq_lens, (Ints{5, 3}));
  EXPECT_EQ(fixture.logits_indices, (Ints{0, 3}));
  EXPECT_EQ(fixture.logit_pos, (Ints{4, 2}));
  EXPECT_EQ(fixture.logit_row, (Ints{0, 1}));
}

TEST_P(RunnerOpsTest, APrefillAndADecodeAtSeven) {
  fixture.add(row_state(4, 0), {10, 11, 12, 13}, 4);
  fixture.add(row_state(5, 7, 77, 8), {1, 2, 3, 4, 5}, 1);
  fixture.prepare();
  EXPECT_EQ(fixture.input_ids, (Ints{10, 11, 12, 13, 77}));
  EXPECT_EQ(fixture.positions, (Ints{0, 1, 2, 3, 7}));
  EXPECT_EQ(fixture.query_start_loc, (Ints{0, 4, 5}));
  EXPECT_EQ(fixture.seq_lens, (Ints{4, 8}));
  EXPECT_EQ(fixture.logits_indices, (Ints{3, 4}));
}

// Tokens are numbered 100 * row + position, and row b has b tokens computed. Ids thus give each token's row in the
// batch, and ids and positions its offset within the request's part of the step.
TEST_P(RunnerOpsTest, QueryStartsOfTwoFiveThree) {
  const int32_t scheduled[] = {2, 5, 3};
  for (int32_t b = 0; b < 3; ++b) {
    Ints ids(16);
    std::iota(ids.begin(), ids.end(), 100 * b);
    fixture.add(row_state(16, b), ids, scheduled[b]);
  }
  fixture.prepare();
  EXPECT_EQ(fixture.query_start_loc, (Ints{0, 2, 7, 10}));
  Ints batch_idx;
  Ints offset;
  for (size_t tok = 0; tok < fixture.input_ids.size(); ++tok) {
    batch_idx.push_back(fixture.input_ids[tok] / 100);
    offset.push_back(fixture.input_ids[tok] % 100 - batch_idx.back());
  }
  EXPECT_EQ(batch_idx, (Ints{0, 0, 1, 1, 1, 1, 1, 2, 2, 2}));
  EXPECT_EQ(offset, (Ints{0, 1, 0, 1, 2, 3, 4, 0, 1, 2}));
  EXPECT_EQ(fixture.positions, (Ints{0, 1, 1, 2, 3, 4, 5, 2, 3, 4}));
  // No row reached the end of its prompt, so no logit yields a token.
  EXPECT_EQ(fixture.logit_row, (Ints{-1, -1, -1}));
}

// A chunk in the middle of a prompt samples nothing.
TEST_P(RunnerOpsTest, AChunkInTheMiddle) {
  fixture.add(row_state(10, 4), {0, 1, 2, 3, 40, 50, 60, 7, 8, 9}, 3);
  fixture.prepare();
  EXPECT_EQ(fixture.input_ids, (Ints{40, 50, 60}));
  EXPECT_EQ(fixture.positions, (Ints{4, 5, 6}));
  EXPECT_EQ(fixture.seq_lens, (Ints{7}));
  fixture.finish({-1});
  EXPECT_EQ(fixture.num_sampled, (Ints{0}));
  EXPECT_EQ(fixture.num_rejected, (Ints{0}));
  EXPECT_EQ(fixture.rows[0].num_computed_tokens, 7);
}

// A chunk without logits does not shift the logits of other rows.
TEST_P(RunnerOpsTest, ARowWithoutLogits) {
  fixture.add(row_state(4, 4, 104, 5), {100, 101, 102, 103}, 1);
  fixture.add(row_state(10, 4), {0, 1, 2, 3, 40, 50, 60, 7, 8, 9}, 3, 0);
  fixture.add(row_state(3, 0), {200, 201, 202}, 3);
  fixture.prepare();
  EXPECT_EQ(fixture.cu_num_logits, (Ints{0, 1, 1, 2}));
  EXPECT_EQ(fixture.logits_indices, (Ints{0, 6}));
  EXPECT_EQ(fixture.logit_row, (Ints{0, 2}));
  EXPECT_EQ(fixture.input_ids, (Ints{104, 40, 50, 60, 200, 201, 202}));
  fixture.finish({105, 203});
  EXPECT_EQ(fixture.num_sampled, (Ints{1, 0, 1}));
  EXPECT_EQ(fixture.rows[0].last_sampled, 105);
  EXPECT_EQ(fixture.rows[1].num_computed_tokens, 7);
  EXPECT_EQ(fixture.rows[1].total_len, 10);
  EXPECT_EQ(fixture.rows[2].last_sampled, 203);
  EXPECT_EQ(fixture.rows[2].total_len, 4);
}

// The last token and two drafts. The second draft is rejected, and the next step starts after the last accepted token.
TEST_P(RunnerOpsTest, DraftsBehindTheLastToken) {
  const int32_t a = 70;
  fixture.add(row_state(15, 20, a, 21), Ints(15, 1), 3, 3);
  fixture.drafts = {71, 72};
  fixture.prepare(2);
  EXPECT_EQ(fixture.input_ids, (Ints{a, 71, 72}));
  EXPECT_EQ(fixture.positions, (Ints{20, 21, 22}));
  EXPECT_EQ(fixture.seq_lens, (Ints{23}));
  EXPECT_EQ(fixture.logits_indices, (Ints{0, 1, 2}));
  EXPECT_EQ(fixture.logit_pos, (Ints{20, 21, 22}));

  // The token rules read the drafts that precede a logit.
  EXPECT_EQ(fixture.later_token(0, 21), 71);
  EXPECT_EQ(fixture.later_token(0, 22), 72);

  fixture.finish({71, 99, 5});
  EXPECT_EQ(fixture.num_sampled, (Ints{2}));
  EXPECT_EQ(fixture.num_rejected, (Ints{1}));
  EXPECT_EQ(fixture.rows[0].num_computed_tokens, 22);
  EXPECT_EQ(fixture.rows[0].last_sampled, 99);
  EXPECT_EQ(fixture.rows[0].total_len, 23);
  EXPECT_EQ(fixture.later_token(0, 21), 71);
  EXPECT_EQ(fixture.later_token(0, 22), 99);
}

TEST_P(RunnerOpsTest, DraftsAreAcceptedWhileTheyEqualTheSample) {
  struct Case {
    Ints sampled;
    int32_t yielded;
    int32_t last;
  };
  // Drafts 71 and 72. A logit from which no token could be sampled (-1) ends the accepted tokens.
  for (const Case& c : {Case{{71, 72, 73}, 3, 73},
                        Case{{71, 99, 73}, 2, 99},
                        Case{{99, 72, 73}, 1, 99},
                        Case{{71, -1, 73}, 2, -1},
                        Case{{-1, 72, 73}, 1, -1}}) {
    StepFixture step(GetParam());
    step.add(row_state(15, 20, 70, 21), Ints(15, 1), 3, 3);
    step.drafts = {71, 72};
    step.prepare(2);
    step.finish(c.sampled);
    EXPECT_EQ(step.num_sampled, (Ints{c.yielded}));
    EXPECT_EQ(step.num_rejected, (Ints{3 - c.yielded}));
    EXPECT_EQ(step.rows[0].num_computed_tokens, 20 + c.yielded);
    EXPECT_EQ(step.rows[0].total_len, 21 + c.yielded);
    EXPECT_EQ(step.rows[0].last_sampled, c.last);
  }
}

// The row spans the end of its prompt. The prompt's last token keeps its place.
TEST_P(RunnerOpsTest, PromptTailUnderPaddedDrafts) {
  fixture.add(row_state(10, 9, 5), {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 3, 3);
  fixture.drafts = {0, 0};
  fixture.prepare(2);
  EXPECT_EQ(fixture.input_ids, (Ints{9, 0, 0}));
  EXPECT_EQ(fixture.seq_lens, (Ints{12}));
  EXPECT_EQ(fixture.logit_pos, (Ints{9, 10, 11}));
}

// After another rank was lost, the results of the step before are missing. The row has no drafts, and none are read.
TEST_P(RunnerOpsTest, APositionBehindAllDraftsTakesTheLastToken) {
  fixture.add(row_state(10, 12, 70, 11), {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 1, 1);
  fixture.prepare();
  EXPECT_EQ(fixture.input_ids, (Ints{70}));
}

// Slots from the block table. Padding tokens write nothing.
TEST_P(RunnerOpsTest, SlotsThroughTheBlockTable) {
  fixture.add(row_state(35, 35, 1, 36), {}, 1);
  const Ints table{7, 3, 9};
  std::vector<int64_t> slots(4, 5);
  fixture.map_slots(table, slots);
  EXPECT_EQ(slots[0], 147);
  Ints ids(4, 9);
  Ints positions(4, 9);
  Ints logits_indices(4, 0);
  Ints logit_row(4, 0);
  Prologue tail;
  tail.tail = {fixture.step(),
               1,
               4,
               3,
               1,
               4,
               ids.data(),
               positions.data(),
               slots.data(),
               logits_indices.data(),
               logit_row.data()};
  tail.num_items = 4;
  fixture.ops->prologue(*fixture.stream, tail);
  EXPECT_EQ(logits_indices, (Ints{0, -1, -1, 0}));
  EXPECT_EQ(logit_row, (Ints{0, -1, -1, 0}));
  EXPECT_EQ(slots, (std::vector<int64_t>{147, -1, -1, -1}));
  EXPECT_EQ(ids, (Ints{9, 0, 0, 0}));
  EXPECT_EQ(positions, (Ints{9, 0, 0, 0}));
}

// Slots and rows whose byte offsets exceed 2^31.
TEST_P(RunnerOpsTest, SlotsPastThirtyOneBits) {
  fixture.add(row_state(16, 3, 1, 17), {}, 1);
  const Ints table{200'000'000};
  std::vector<int64_t> slots(1);
  fixture.map_slots(table, slots);
  EXPECT_EQ(slots[0], 3'200'000'003);
}

TEST_P(RunnerOpsTest, PaddingRowsAreEmpty) {
  fixture.add(row_state(2, 0), {8, 9}, 2);
  fixture.idx_mapping.push_back(-1);
  fixture.query_start_loc.push_back(2);
  fixture.cu_num_logits.push_back(1);
  fixture.prepare();
  EXPECT_EQ(fixture.seq_lens, (Ints{2, 0}));
  EXPECT_EQ(fixture.input_ids, (Ints{8, 9}));
}

// A withheld row computes its token again: the next step starts at this step's last token.
TEST_P(RunnerOpsTest, AWithheldRowGoesBackByItsLogits) {
  fixture.add(row_state(4, 0), {1, 2, 3, 4}, 4);
  fixture.prepare();
  fixture.logit_row[0] = kWithheldRow;
  fixture.finish({-1});
  EXPECT_EQ(fixture.num_sampled, (Ints{0}));
  EXPECT_EQ(fixture.num_rejected, (Ints{1}));
  EXPECT_EQ(fixture.rows[0].num_computed_tokens, 3);
  EXPECT_EQ(fixture.rows[0].total_len, 4);
}

TEST_P(RunnerOpsTest, AWithheldRowWithDraftsComputesThemAgain) {
  fixture.add(row_state(15, 20, 70, 21), Ints(15, 1), 3, 3);
  fixture.drafts = {71, 72};
  fixture.prepare(2);
  fixture.logit_row.assign(3, kWithheldRow);
  fixture.finish({-1, -1, -1});
  EXPECT_EQ(fixture.num_sampled, (Ints{0}));
  EXPECT_EQ(fixture.num_rejected, (Ints{3}));
  EXPECT_EQ(fixture.rows[0].num_computed_tokens, 20);
  EXPECT_EQ(fixture.rows[0].last_sampled, 70);
}

TEST_P(RunnerOpsTest, PostUpdateMovesEachRowOn) {
  fixture.add(row_state(4, 0), {1, 2, 3, 4}, 3);   // still in prefill
  fixture.add(row_state(2, 5, 50, 6), {1, 2}, 1);  // decodes
  fixture.prepare();
  fixture.finish({-1, 51});
  EXPECT_EQ(fixture.num_sampled, (Ints{0, 1}));
  EXPECT_EQ(fixture.rows[0].num_computed_tokens, 3);
  EXPECT_EQ(fixture.rows[0].total_len, 4);
  EXPECT_EQ(fixture.rows[1].num_computed_tokens, 6);
  EXPECT_EQ(fixture.rows[1].total_len, 7);
  EXPECT_EQ(fixture.rows[1].last_sampled, 51);
  EXPECT_EQ(fixture.later_token(1, 6), 51);
}

}  // namespace
}  // namespace warprow
