// SPDX-License-Identifier: Apache-2.0
#include "cli/replay/schedule_check.h"

#include <cstdint>
#include <functional>

#include <gtest/gtest.h>

namespace warprow {
namespace {

ModelFacts small_facts() {
  ModelFacts facts;
  facts.max_num_seqs = 2;
  facts.max_num_batched_tokens = 64;
  facts.kv.groups.push_back({});
  facts.kv.num_blocks = 8;
  facts.token_pages = {1024, 8};
  return facts;
}

// A step in which a row begins with this block and page and computes its prompt of 10.
SchedulerOutput begin_row(int64_t number, int32_t row, int32_t block, int32_t page) {
  SchedulerOutput step;
  step.step = number;
  NewRow& added = step.new_rows.emplace_back();
  added.row = RowId{row};
  added.generation = 1;
  added.prompt_len = added.prefill_len = 10;
  step.block_ids = {BlockId{block}};
  step.block_appends.push_back({RowId{row}, 0, 0, {0, 1}});
  step.page_ids = {PageId{page}};
  step.page_appends.push_back({RowId{row}, 0, {0, 1}});
  step.scheduled.push_back({RowId{row}, 10, 0, 0, 1});
  step.total_num_tokens = 10;
  return step;
}

TEST(ScheduleCheck, NamesEachContradiction) {
  const auto second = [](SchedulerOutput step) {
    ScheduleCheck check(small_facts());
    EXPECT_EQ(check.add(begin_row(1, 0, 3, 1)), "");
    return check.add(step);
  };
  EXPECT_EQ(second(begin_row(2, 1, 4, 2)), "");
  EXPECT_EQ(second(begin_row(2, 0, 4, 2)), "row 0 is given out twice");
  EXPECT_EQ(second(begin_row(2, 1, 3, 2)), "row 1 is to write block 3, which another row holds");
  EXPECT_EQ(second(begin_row(2, 1, 8, 2)), "row 1 gets block 8 of 8");
  EXPECT_EQ(second(begin_row(2, 1, 0, 2)), "row 1 gets block 0 of 8");
  EXPECT_EQ(second(begin_row(2, 1, 4, 1)), "row 1 gets token page 1, which is not free");
  EXPECT_EQ(second(begin_row(2, 2, 4, 2)), "row 2 of 2 is given out");
  EXPECT_EQ(second(begin_row(4, 1, 4, 2)), "follows step 1");

  // Ten prompt tokens, and with `more` so many, beside a row that decodes.
  const auto mixed = [&](int32_t more, int32_t limit) {
    SchedulerOutput step = begin_row(2, 1, 4, 2);
    step.new_rows.front().prompt_len = step.new_rows.front().prefill_len = 10 + more;
    step.block_ids = {BlockId{4}, BlockId{5}};
    step.block_appends.front().blocks.count = 2;
    step.scheduled.front().num_tokens += more;
    step.scheduled.push_back({RowId{0}, 1, 10, 0, 1});
    step.total_num_tokens += 1 + more;
    step.max_mixed_prefill = limit;
    return step;
  };
  EXPECT_EQ(second(mixed(7, 0)), "");
  EXPECT_EQ(second(mixed(7, 17)), "");
  EXPECT_EQ(second(mixed(7, 16)),
            "17 prompt tokens beside decoding rows, more than the 16 that were allowed");

  SchedulerOutput step;
  step.step = 2;
  step.scheduled.push_back({RowId{0}, 1, 10, 0, 1});
  EXPECT_EQ(second(step), "");
  step.scheduled.front().num_computed_tokens = 9;
  EXPECT_EQ(second(step), "row 0 has 9 tokens computed; 10 were computed and confirmed");
  step.scheduled.front() = {RowId{0}, 1, 10, 0, 0};
  EXPECT_EQ(second(step), "row 0 has 0 logits after 11 tokens, with a prefill of 10");
  step.scheduled.front() = {RowId{0}, 7, 10, 0, 1};
  EXPECT_EQ(second(step), "row 0 computes 17 tokens with blocks for 16");
  step.scheduled.front() = {RowId{0}, 1, 10, 0, 1};
  step.scheduled.push_back(step.scheduled.front());
  EXPECT_EQ(second(step), "row 0 is scheduled twice");
  step.scheduled.clear();
  step.finished_rows = {RowId{0}, RowId{0}};
  EXPECT_EQ(second(step), "row 0 is released but not live");
}

TEST(ScheduleCheck, AnOutputBelongsToItsStep) {
  const auto taken = [](const std::function<void(ModelRunnerOutput&)>& change) {
    ScheduleCheck check(small_facts());
    EXPECT_EQ(check.add(begin_row(1, 0, 3, 1)), "");
    ModelRunnerOutput output;
    output.step = 1;
    output.rows.push_back(
        {.row = RowId{0}, .generation = 1, .kind = RowResult::kTokens, .tokens = {0, 1}});
    output.token_ids = {5};
    output.stats.num_toks = 10;
    change(output);
    return check.add(output);
  };
  EXPECT_EQ(taken([](ModelRunnerOutput&) {}), "");
  EXPECT_EQ(taken([](ModelRunnerOutput& out) { out.step = 2; }), "an output without a step");
  EXPECT_EQ(taken([](ModelRunnerOutput& out) { out.rows.clear(); }),
            "0 rows in the output of 1 rows");
  EXPECT_EQ(taken([](ModelRunnerOutput& out) { out.stats.num_toks = 9; }),
            "9 tokens were computed of 10");
  EXPECT_EQ(taken([](ModelRunnerOutput& out) { out.rows[0].generation = 2; }),
            "row 0 has an output of generation 2 and not 1");
  EXPECT_EQ(taken([](ModelRunnerOutput& out) { out.rows[0].tokens.count = 0; }),
            "row 0 has 0 tokens and 0 rejected of 1 logits");
}

}  // namespace
}  // namespace warprow
