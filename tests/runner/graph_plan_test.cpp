// SPDX-License-Identifier: Apache-2.0
#include "runner/graphs/graph_plan.h"

#include "runner/input_batch.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

GraphPlan plan_of(GraphPolicy policy,
                  GraphSupport weakest,
                  std::vector<int32_t> sizes,
                  int32_t decode_len = 1,
                  int32_t max_num_seqs = 16) {
  GraphOptions options;
  options.policy = policy;
  options.sizes = std::move(sizes);
  return {options, weakest, decode_len, max_num_seqs};
}

GraphPlan plan_of(std::vector<int32_t> sizes) {
  return plan_of(
      GraphPolicy::kFullAndPiecewise, GraphSupport::kUniformSingleTokenDecode, std::move(sizes));
}

StepShape decodes(int32_t rows, int32_t query_len = 1) {
  return {rows * query_len, rows, query_len};
}
StepShape mixed(int32_t toks, int32_t rows) { return {toks, rows, 0}; }

void expect_choice(const GraphChoice& choice, GraphMode mode, int32_t toks, int32_t rows) {
  EXPECT_EQ(choice.mode, mode);
  EXPECT_EQ(choice.num_toks, toks);
  EXPECT_EQ(choice.num_rows, rows);
}

TEST(GraphPlan, ABatchTakesTheNextSize) {
  const GraphPlan plan = plan_of({1, 2, 4, 8});
  expect_choice(plan.choose(decodes(1)), GraphMode::kFull, 1, 1);
  expect_choice(plan.choose(decodes(3)), GraphMode::kFull, 4, 4);
  expect_choice(plan.choose(decodes(4)), GraphMode::kFull, 4, 4);
  expect_choice(plan.choose(decodes(5)), GraphMode::kFull, 8, 8);
  expect_choice(plan.choose(decodes(9)), GraphMode::kNone, 9, 9);
  EXPECT_EQ(plan.sample_rows(3), 4);
  EXPECT_EQ(plan.sample_rows(9), 0);
  EXPECT_EQ(plan.sample_rows(0), 0);
}

TEST(GraphPlan, MixedStepsPadTokensOnly) {
  const GraphPlan plan = plan_of({1, 2, 4, 8, 16});
  // Rows of 1 and 2 tokens.
  expect_choice(plan.choose(mixed(3, 2)), GraphMode::kPiecewise, 4, 2);
  expect_choice(plan.choose(mixed(17, 2)), GraphMode::kNone, 17, 2);
  // A single prefill counts as a mixed step, and so does a step without rows.
  expect_choice(plan.choose({7, 1, 7}), GraphMode::kPiecewise, 8, 1);
  expect_choice(plan.choose({5, 0, 0}), GraphMode::kPiecewise, 8, 0);
  expect_choice(plan.choose({0, 0, 0}), GraphMode::kNone, 0, 0);
}

TEST(GraphPlan, DecodesWithDraftsArePaddedToWholeRows) {
  const GraphPlan plan = plan_of(
      GraphPolicy::kFullAndPiecewise, GraphSupport::kUniformBatch, {1, 2, 4, 8, 16, 24}, 3, 16);
  // 12 tokens: the graph of 16 is padded to six whole rows and is preferred to pieces.
  expect_choice(plan.choose(decodes(4, 3)), GraphMode::kFull, 18, 6);
  expect_choice(plan.choose(decodes(1, 3)), GraphMode::kFull, 3, 1);
  expect_choice(plan.choose(decodes(8, 3)), GraphMode::kFull, 24, 8);
  expect_choice(plan.choose(decodes(9, 3)), GraphMode::kNone, 27, 9);
  // A size that only decode rows would fit also serves mixed steps.
  expect_choice(plan.choose(mixed(17, 7)), GraphMode::kPiecewise, 24, 7);
  // Rows that draft fewer tokens have graphs of their own, of that length.
  expect_choice(plan.choose(decodes(12)), GraphMode::kFull, 16, 16);
  EXPECT_EQ(plan.choose(decodes(12)).query_len, 1);
  expect_choice(plan.choose(decodes(7, 2)), GraphMode::kFull, 16, 8);
  EXPECT_EQ(plan.choose(decodes(7, 2)).query_len, 2);
  expect_choice(plan.choose(decodes(3, 4)), GraphMode::kPiecewise, 16, 3);
}

TEST(GraphPlan, RowsNeverExceedTheRunners) {
  const GraphPlan plan = plan_of(
      GraphPolicy::kFull, GraphSupport::kAlways, {1, 2, 4, 8, 16, 24}, 1, /*max_num_seqs=*/10);
  // Ten decode rows: the next graph would have sixteen rows, more than the runner has.
  expect_choice(plan.choose(decodes(10)), GraphMode::kNone, 10, 10);
  expect_choice(plan.choose(mixed(20, 3)), GraphMode::kFull, 24, 10);
  EXPECT_EQ(plan.sample_rows(10), 0);
}

// The graph mode of a step, by policy and by the weakest backend's capture support.
struct Resolution {
  GraphPolicy policy;
  GraphSupport weakest;
  int32_t decode_len;
  GraphMode decode;
  GraphMode mixed;
};

TEST(GraphPlan, ModesFollowTheWeakestBackend) {
  using enum GraphSupport;
  constexpr GraphMode kNone = GraphMode::kNone;
  constexpr GraphMode kPieces = GraphMode::kPiecewise;
  constexpr GraphMode kWhole = GraphMode::kFull;
  const Resolution table[] = {
      {GraphPolicy::kFull, kAlways, 1, kWhole, kWhole},
      {GraphPolicy::kFull, kAlways, 3, kWhole, kWhole},
      {GraphPolicy::kFull, kUniformBatch, 1, kWhole, kPieces},
      {GraphPolicy::kFull, kUniformBatch, 3, kWhole, kPieces},
      {GraphPolicy::kFull, kUniformSingleTokenDecode, 1, kWhole, kPieces},
      {GraphPolicy::kFull, kUniformSingleTokenDecode, 3, kPieces, kPieces},
      {GraphPolicy::kFull, kNever, 1, kPieces, kPieces},
      {GraphPolicy::kFullAndPiecewise, kAlways, 1, kWhole, kPieces},
      {GraphPolicy::kFullAndPiecewise, kUniformBatch, 3, kWhole, kPieces},
      {GraphPolicy::kFullAndPiecewise, kUniformSingleTokenDecode, 3, kPieces, kPieces},
      {GraphPolicy::kFullAndPiecewise, kNever, 1, kPieces, kPieces},
      {GraphPolicy::kFullDecodeOnly, kAlways, 1, kWhole, kNone},
      {GraphPolicy::kFullDecodeOnly, kUniformSingleTokenDecode, 3, kNone, kNone},
      {GraphPolicy::kFullDecodeOnly, kNever, 1, kNone, kNone},
      {GraphPolicy::kPiecewise, kAlways, 1, kPieces, kPieces},
      {GraphPolicy::kPiecewise, kNever, 1, kPieces, kPieces},
      {GraphPolicy::kNone, kAlways, 1, kNone, kNone},
  };
  for (const Resolution& row : table) {
    SCOPED_TRACE(::testing::Message()
                 << "policy " << static_cast<int>(row.policy) << ", support "
                 << static_cast<int>(row.weakest) << ", decode_len " << row.decode_len);
    const GraphPlan plan = plan_of(row.policy, row.weakest, {1, 2, 4, 8, 16}, row.decode_len);
    EXPECT_EQ(plan.decode_mode(), row.decode);
    EXPECT_EQ(plan.mixed_mode(), row.mixed);
    EXPECT_EQ(plan.choose(decodes(2, row.decode_len)).mode, row.decode);
    EXPECT_EQ(plan.choose(mixed(5, 2)).mode, row.mixed);
  }
}

// A graph that serves any mix of rows is captured once, not once per common query length.
TEST(GraphPlan, OnlyDecodesCountOnTheirLength) {
  const GraphPlan plan = plan_of(GraphPolicy::kFull, GraphSupport::kAlways, {1, 2, 4, 8, 16});
  EXPECT_EQ(plan.choose(decodes(3)).query_len, 1);
  EXPECT_EQ(plan.choose({5, 1, 5}).query_len, 0);
  EXPECT_EQ(plan.choose(mixed(5, 2)).query_len, 0);
}

TEST(GraphPlan, UniformLengthOfRows) {
  const auto rows = [](const std::vector<int32_t>& lens) {
    std::vector<ScheduledRow> out(lens.size());
    for (size_t i = 0; i < lens.size(); ++i) {
      out[i] = {RowId{static_cast<int32_t>(i)}, lens[i], 0, 0};
    }
    return out;
  };
  EXPECT_EQ(uniform_query_len(rows({3, 3, 3})), 3);
  EXPECT_EQ(uniform_query_len(rows({3, 3, 2})), 0);
  EXPECT_EQ(uniform_query_len(rows({2, 4})), 0);  // the same number of tokens as two rows of three
  EXPECT_EQ(uniform_query_len({}), 0);
}

TEST(GraphSizes, DefaultsEndWithTheLargestDecodeBatch) {
  const std::vector<int32_t> large = default_capture_sizes(1024, 1, 8192);
  EXPECT_EQ(std::vector(large.begin(), large.begin() + 6),
            (std::vector<int32_t>{1, 2, 4, 8, 16, 24}));
  EXPECT_EQ(large.back(), 512);
  EXPECT_TRUE(std::is_sorted(large.begin(), large.end()));
  EXPECT_EQ(default_capture_sizes(5, 1, 8192), (std::vector<int32_t>{1, 2, 4, 5}));
  EXPECT_EQ(default_capture_sizes(64, 1, 3), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(default_capture_sizes(1, 1, 1), std::vector<int32_t>{1});
  EXPECT_EQ(default_capture_sizes(3, 4, 8192), (std::vector<int32_t>{1, 2, 4, 8, 12}));
}

TEST(GraphSizes, PowersOfTwoToTheLargestAreTen) {
  const auto sizes = parse_capture_sizes("1,2,4,8,16,32,64,128,256,512");
  ASSERT_TRUE(sizes);
  EXPECT_EQ(sizes->size(), 10U);
  const GraphPlan plan = plan_of(
      GraphPolicy::kFullAndPiecewise, GraphSupport::kUniformSingleTokenDecode, *sizes, 1, 512);
  std::vector<int32_t> used;
  for (int32_t rows = 1; rows <= 512; ++rows) {
    used.push_back(plan.choose(decodes(rows)).num_toks);
    EXPECT_GE(used.back(), rows);
    EXPECT_LT(used.back(), 2 * rows);
  }
  used.erase(std::unique(used.begin(), used.end()), used.end());
  EXPECT_EQ(used, *sizes);
  EXPECT_EQ(plan.choose(decodes(513)).mode, GraphMode::kNone);
}

TEST(GraphSizes, MistakesAreNamed) {
  for (const char* text :
       {"", "1,2,,4", "1,2,", ",1", "4,2", "2,2", "0,1", "-1", "1 2", "a", "1,x"}) {
    const auto sizes = parse_capture_sizes(text);
    ASSERT_FALSE(sizes) << text;
    EXPECT_NE(sizes.error().message.find(std::string("'") + text + "'"), std::string::npos);
  }
}

TEST(GraphPolicies, NamesAreVllms) {
  EXPECT_EQ(*parse_graph_policy("none"), GraphPolicy::kNone);
  EXPECT_EQ(*parse_graph_policy("piecewise"), GraphPolicy::kPiecewise);
  EXPECT_EQ(*parse_graph_policy("full"), GraphPolicy::kFull);
  EXPECT_EQ(*parse_graph_policy("full_decode_only"), GraphPolicy::kFullDecodeOnly);
  EXPECT_EQ(*parse_graph_policy("full_and_piecewise"), GraphPolicy::kFullAndPiecewise);
  const auto unknown = parse_graph_policy("fulll");
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().message.find("'fulll'"), std::string::npos);
}

}  // namespace
}  // namespace warprow
