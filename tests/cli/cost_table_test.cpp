// SPDX-License-Identifier: Apache-2.0
#include "cli/simulate/cost_table.h"

#include "cli/bench/cost_clock.h"
#include "cli/simulate/h200_costs.h"
#include "executor/executor_wrapper.h"

#include <future>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::HasSubstr;

CostTable small_table() {
  CostTable table;
  table.model = "m";
  table.prefill_us = CostCurve({{1, 100}, {10, 190}});
  table.decode_us = CostCurve({{1, 100}, {4, 160}});
  table.decode_context_ns = CostCurve({{1, 20}, {3, 10}});
  table.prefill_pair_ns = 2;
  table.host_us = 5;
  return table;
}

TEST(CostCurve, IsLinearBetweenPointsAndBehindTheLast) {
  const CostCurve curve({{2, 10}, {4, 20}, {8, 60}});
  EXPECT_DOUBLE_EQ(curve.at(0), 10);
  EXPECT_DOUBLE_EQ(curve.at(2), 10);
  EXPECT_DOUBLE_EQ(curve.at(3), 15);
  EXPECT_DOUBLE_EQ(curve.at(4), 20);
  EXPECT_DOUBLE_EQ(curve.at(6), 40);
  EXPECT_DOUBLE_EQ(curve.at(10), 80);
  EXPECT_DOUBLE_EQ(CostCurve({{5, 3}}).at(100), 3);
  EXPECT_DOUBLE_EQ(CostCurve().at(1), 0);
}

TEST(CostTable, AddsTheParts) {
  const CostTable table = small_table();
  // Rows alone: decode_us, and their contexts.
  EXPECT_DOUBLE_EQ(
      table.step_us({.num_toks = 4, .num_logits = 4, .decode_context = 1000, .num_decode_rows = 4}),
      160 + 5);
  // A prompt alone that is not whole: prefill_us and its pairs.
  EXPECT_DOUBLE_EQ(table.step_us({.num_toks = 10, .prefill_pairs = 55}), 190 + 0.11);
  // Both: the weights once, and what four rows' logits cost more.
  EXPECT_DOUBLE_EQ(table.step_us({.num_toks = 7, .num_logits = 4}), 160 + (160 - 130));
}

TEST(CostTable, TellsRowsOfPromptsFromThoseThatDecode) {
  StepLoad load;
  add_row(load, {.num_tokens = 3, .num_computed_tokens = 4}, 10);                   // a chunk
  add_row(load, {.num_tokens = 3, .num_computed_tokens = 7, .num_logits = 1}, 10);  // the last one
  add_row(load, {.num_tokens = 1, .num_computed_tokens = 10, .num_logits = 1}, 10);
  EXPECT_EQ(load.num_logits, 2);
  EXPECT_EQ(load.prefill_pairs, (5 + 6 + 7) + (8 + 9 + 10));
  EXPECT_EQ(load.decode_context, 11);
  EXPECT_EQ(load.num_decode_rows, 1);
}

TEST(CostTable, SurvivesItsText) {
  const CostTable table = small_table();
  const Result<CostTable> again = read_cost_table(cost_table_json(table).dump(), "t.json");
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->model, "m");
  EXPECT_EQ(again->prefill_us.points(), table.prefill_us.points());
  EXPECT_EQ(again->decode_context_ns.points(), table.decode_context_ns.points());
  EXPECT_EQ(again->prefill_pair_ns, 2);
  EXPECT_EQ(again->host_us, 5);
}

TEST(CostTable, MistakesAreNamed) {
  const auto error_with = [](const char* name, const char* value) {
    AnswerJson json = cost_table_json(small_table());
    json[name] = AnswerJson::parse(value);
    return read_cost_table(json.dump(), "t.json").error().message;
  };
  EXPECT_THAT(read_cost_table("[1]", "t.json").error().message,
              HasSubstr("t.json: no JSON object"));
  EXPECT_THAT(error_with("decode_us", "[]"), HasSubstr("t.json: decode_us: \"0 points\" is not"));
  EXPECT_THAT(error_with("decode_us", "[[1, 2], [1, 3]]"),
              HasSubstr("decode_us: [1,3] is not [count above 1"));
  EXPECT_THAT(error_with("prefill_us", "[[1, -2]]"), HasSubstr("prefill_us: [1,-2] is not"));
  EXPECT_THAT(error_with("host_us", "\"5\""), HasSubstr("host_us: \"5\" is not a number from 0"));
  EXPECT_THAT(find_cost_table("/no/such").error().message, HasSubstr("h200-qwen3-0.6b"));
}

// The built-in tables give the figures that they were made from.
TEST(CostTable, TheTablesOfTheH200GiveItsFigures) {
  const CostTable table = *find_cost_table("h200-qwen3-8b");
  const auto decode_us = [&table](int32_t rows, int64_t context) {
    return table.step_us({.num_toks = rows,
                          .num_logits = rows,
                          .decode_context = rows * context,
                          .num_decode_rows = rows});
  };
  EXPECT_NEAR(decode_us(1, 256), 3870, 1);
  EXPECT_NEAR(decode_us(128, 256), 6590, 1);
  EXPECT_NEAR(decode_us(512, 256), 17760, 1);
  EXPECT_NEAR(decode_us(32, 2112), 6460, 1);
  EXPECT_NEAR(table.step_us({.num_toks = 1024, .num_logits = 1}), 24120, 1);
  EXPECT_NEAR(table.step_us({.num_toks = 8192, .num_logits = 8}), 8192 / 43.2 * 1000, 1);
  EXPECT_EQ(h200_costs().size(), 2);
}

// Takes outputs without ranks.
class Idle final : public Executor {
 public:
  Idle() { facts_.max_num_seqs = 4; }
  [[nodiscard]] const ModelFacts& model_facts() const override { return facts_; }
  [[nodiscard]] int32_t max_concurrent_batches() const override { return 2; }
  void execute_model(const SchedulerOutput& /*step*/) override { ++outstanding_; }
  void sample_tokens(const GrammarOutput* /*grammar*/) override {}
  [[nodiscard]] int32_t num_outstanding() const override { return outstanding_; }
  [[nodiscard]] bool output_ready() const override { return true; }
  void take_output(ModelRunnerOutput& /*output*/) override { --outstanding_; }
  RankReplies collective_rpc(std::string_view, const std::string&, RankSet) override {
    return std::promise<std::vector<std::string>>().get_future();
  }
  [[nodiscard]] ExecutorStats stats() const override { return {}; }

 private:
  ModelFacts facts_;
  int32_t outstanding_ = 0;
};

TEST(CostClock, NotesTheLoadOfEachStepWithTokens) {
  TimedSteps steps;
  const auto clock = make_cost_clock(std::make_unique<Idle>(), steps);
  SchedulerOutput first;
  NewRow& row = first.new_rows.emplace_back();
  row.row = RowId{2};
  row.prefill_len = 5;
  first.scheduled.push_back({.row = RowId{2}, .num_tokens = 5, .num_logits = 1});
  first.total_num_tokens = 5;
  SchedulerOutput second;
  second.scheduled.push_back(
      {.row = RowId{2}, .num_tokens = 1, .num_computed_tokens = 5, .num_logits = 1});
  second.total_num_tokens = 1;
  ModelRunnerOutput output;
  clock->execute_model(first);
  clock->execute_model(second);
  clock->take_output(output);
  clock->take_output(output);
  clock->execute_model(SchedulerOutput());
  clock->take_output(output);
  const std::vector<TimedStep> taken = steps.take();
  ASSERT_EQ(taken.size(), 2);
  EXPECT_EQ(taken[0].load.prefill_pairs, 15);
  EXPECT_EQ(taken[0].load.num_decode_rows, 0);
  EXPECT_EQ(taken[1].load.decode_context, 6);
  EXPECT_GE(taken[0].us, 0);
  EXPECT_TRUE(steps.take().empty());
}

}  // namespace
}  // namespace warprow
