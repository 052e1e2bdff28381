// SPDX-License-Identifier: Apache-2.0
#include "cli/replay/ids_hash.h"

#include "wire/serialize.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

TEST(IdsHash, LeavesShapesAndTakesIds) {
  SchedulerOutput step;
  step.step = 5;
  step.token_ids = {11, 12, 13};
  step.stop_ids = {2};
  NewRow& added = step.new_rows.emplace_back();
  added.row = RowId{4};
  added.prompt_len = added.prefill_len = 3;
  added.tokens = {0, 3};
  added.stop_ids = {0, 1};
  step.scheduled.push_back({RowId{4}, 3, 0, 0, 1});
  step.total_num_tokens = 3;
  SchedulerOutput again = step;
  std::vector<IdsHash> hashes;
  hide_ids(step, hashes);
  ASSERT_EQ(hashes.size(), 2U);
  EXPECT_EQ(hashes[0].row, RowId{4});
  EXPECT_EQ(hashes[0].of, IdsHash::Of::kPrefill);
  EXPECT_EQ(hashes[0].count, 3);
  EXPECT_TRUE(step.token_ids.empty());
  EXPECT_TRUE(step.stop_ids.empty());
  EXPECT_EQ(step.new_rows.front().prefill_len, 3);

  again.token_ids[1] = 99;
  std::vector<IdsHash> others;
  hide_ids(again, others);
  EXPECT_NE(others[0].hash, hashes[0].hash);
  EXPECT_EQ(others[1].hash, hashes[1].hash);

  std::vector<uint8_t> bytes;
  serialize(step, bytes);
  SchedulerOutput read;
  EXPECT_TRUE(deserialize(bytes, read));
}

TEST(IdsHash, KeepsTheCountsOfAnOutput) {
  ModelRunnerOutput output;
  output.rows.push_back({.row = RowId{1}, .kind = RowResult::kTokens, .tokens = {0, 2}});
  output.token_ids = {31, 32};
  output.has_logprobs = true;
  output.logprobs = {{-0.5F, 1, {0, 1}}, {-0.25F, 2, {1, 1}}};
  output.top_ids = {31, 40};
  output.top_logprobs = {-0.5F, -0.125F};
  ModelRunnerOutput other = output;
  other.top_logprobs[1] = -0.126F;
  std::vector<IdsHash> hashes;
  hide_ids(output, hashes);
  hide_ids(other, hashes);
  ASSERT_EQ(hashes.size(), 2U);
  EXPECT_NE(hashes[0].hash, hashes[1].hash);
  EXPECT_EQ(output.token_ids, (std::vector<TokenId>{0, 0}));
  EXPECT_EQ(output.rows[0].tokens.count, 2);
  std::vector<uint8_t> bytes;
  serialize(output, bytes);
  EXPECT_TRUE(deserialize(bytes, other));
}

TEST(IdsHash, MasksLeaveTheirRows) {
  GrammarOutput grammar;
  grammar.masked_rows = {{RowId{1}, 1}, {RowId{2}, 2}};
  grammar.withheld_rows = {RowId{3}};
  grammar.bitmask = {1, 2, 3, 4, 5, 6};
  std::vector<IdsHash> hashes;
  hide_ids(grammar, hashes);
  ASSERT_EQ(hashes.size(), 2U);
  EXPECT_EQ(hashes[1].count, 4);
  EXPECT_EQ(grammar.bitmask, (std::vector<uint32_t>{0, 0, 0}));
  std::vector<uint8_t> bytes;
  serialize(grammar, bytes);
  GrammarOutput read;
  EXPECT_TRUE(deserialize(bytes, read));
  EXPECT_EQ(read.withheld_rows, grammar.withheld_rows);
}

}  // namespace
}  // namespace warprow
