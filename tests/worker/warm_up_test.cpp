// SPDX-License-Identifier: Apache-2.0
#include "worker/warm_up.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

// Records the steps that it gets and answers each of their rows.
class RecordingRunner final : public Runner {
 public:
  void bind_kv_cache(const KvCache* /*cache*/) override {}
  void execute_model(const SchedulerOutput& step) override { steps.push_back(step); }
  void sample_tokens(const GrammarOutput* /*grammar*/) override { ++num_sampled_; }
  [[nodiscard]] bool forward_done() const override { return true; }
  void take_output(ModelRunnerOutput& output) override {
    output.step = steps.back().step;
    for (const ScheduledRow& row : steps.back().scheduled) {
      output.rows.emplace_back().row = row.row;
    }
    ++num_taken_;
  }
  [[nodiscard]] int32_t num_outstanding() const override { return num_sampled_ - num_taken_; }
  [[nodiscard]] bool output_ready() const override { return true; }
  [[nodiscard]] Operations& operations() override { return operations_; }
  [[nodiscard]] std::vector<std::span<const std::byte>> lasting_state() const override {
    return {};
  }
  [[nodiscard]] const GraphStats& graph_stats() const override { return graphs_; }
  [[nodiscard]] int64_t output_wait_ns() const override { return 0; }

  std::vector<SchedulerOutput> steps;

 private:
  int32_t num_sampled_ = 0;
  int32_t num_taken_ = 0;
  Operations operations_;
  GraphStats graphs_;
};

KvCacheSpec cache_of(int32_t num_groups, int32_t num_blocks) {
  KvCacheSpec cache;
  cache.groups.resize(static_cast<size_t>(num_groups));
  cache.num_blocks = num_blocks;
  return cache;
}

constexpr WarmUpLimits kRoomy = {.max_num_seqs = 64,
                                 .max_num_batched_tokens = 512,
                                 .max_model_len = 2048,
                                 .vocab_size = 1000,
                                 .loads_kernels = true};

TEST(WarmUp, AChunkBesideADecodeThenAPlainDecode) {
  RecordingRunner runner;
  warm_up(runner, kRoomy, cache_of(2, 100));
  ASSERT_EQ(runner.steps.size(), 3U);
  EXPECT_EQ(runner.num_outstanding(), 0);

  const SchedulerOutput& first = runner.steps[0];
  EXPECT_EQ(first.step, -2);
  ASSERT_EQ(first.new_rows.size(), 2U);
  EXPECT_EQ(first.token_ids, (std::vector<TokenId>{0, 1, 2, 0}));
  EXPECT_FALSE(first.new_rows[0].params.is_greedy());
  EXPECT_EQ(first.new_rows[1].params, SamplingParams{});
  EXPECT_EQ(first.scheduled,
            (std::vector<ScheduledRow>{{RowId{0}, 3, 0, 0, 1}, {RowId{1}, 1, 0, 0, 1}}));
  EXPECT_EQ(first.total_num_tokens, 4);
  // Each row has its own block in both groups. None is the null block.
  EXPECT_EQ(first.block_ids,
            (std::vector<BlockId>{BlockId{1}, BlockId{2}, BlockId{3}, BlockId{4}}));
  EXPECT_EQ(first.block_appends,
            (std::vector<BlockAppend>{{RowId{0}, 0, 0, {0, 1}},
                                      {RowId{0}, 1, 0, {1, 1}},
                                      {RowId{1}, 0, 0, {2, 1}},
                                      {RowId{1}, 1, 0, {3, 1}}}));
  EXPECT_EQ(first.page_ids, (std::vector<PageId>{PageId{1}, PageId{2}}));
  EXPECT_EQ(first.page_appends,
            (std::vector<PageAppend>{{RowId{0}, 0, {0, 1}}, {RowId{1}, 0, {1, 1}}}));

  const SchedulerOutput& second = runner.steps[1];
  EXPECT_EQ(second.step, -1);
  EXPECT_EQ(second.finished_rows, std::vector<RowId>{RowId{0}});
  EXPECT_EQ(second.scheduled, (std::vector<ScheduledRow>{{RowId{1}, 1, 1, 0, 1}}));
  EXPECT_EQ(second.total_num_tokens, 1);

  const SchedulerOutput& third = runner.steps[2];
  EXPECT_EQ(third.step, 0);
  EXPECT_EQ(third.finished_rows, std::vector<RowId>{RowId{1}});
  EXPECT_TRUE(third.scheduled.empty());
}

// Where warm-up loads no kernels, a plain decode step would only take time.
TEST(WarmUp, ACpuRunsOneForward) {
  WarmUpLimits limits = kRoomy;
  limits.loads_kernels = false;
  RecordingRunner runner;
  warm_up(runner, limits, cache_of(1, 100));
  ASSERT_EQ(runner.steps.size(), 2U);
  EXPECT_EQ(runner.steps[0].total_num_tokens, 4);
  EXPECT_EQ(runner.steps[1].step, -1);
  EXPECT_TRUE(runner.steps[1].scheduled.empty());
  EXPECT_EQ(runner.steps[1].finished_rows, (std::vector<RowId>{RowId{0}, RowId{1}}));
}

TEST(WarmUp, OneRowWhereThereIsRoomForOne) {
  WarmUpLimits one = kRoomy;
  one.max_num_seqs = 1;
  WarmUpLimits short_of_tokens = kRoomy;
  short_of_tokens.max_num_batched_tokens = 1;
  for (const auto& [limits, blocks, chunk_len] :
       {std::tuple(one, 100, 3), std::tuple(short_of_tokens, 100, 1), std::tuple(kRoomy, 2, 3)}) {
    RecordingRunner runner;
    warm_up(runner, limits, cache_of(1, blocks));
    ASSERT_EQ(runner.steps.size(), 3U);
    EXPECT_EQ(runner.steps[0].scheduled,
              (std::vector<ScheduledRow>{{RowId{0}, chunk_len, 0, 0, 1}}));
    EXPECT_EQ(runner.steps[1].scheduled,
              (std::vector<ScheduledRow>{{RowId{0}, 1, chunk_len, 0, 1}}));
    EXPECT_TRUE(runner.steps[1].finished_rows.empty());
    EXPECT_EQ(runner.steps[2].finished_rows, std::vector<RowId>{RowId{0}});
  }
}

// A row's history must hold its prompt and the tokens of two steps.
TEST(WarmUp, ShortHistories) {
  WarmUpLimits limits = kRoomy;
  limits.max_model_len = 3;
  RecordingRunner runner;
  warm_up(runner, limits, cache_of(1, 100));
  EXPECT_EQ(runner.steps[0].total_num_tokens, 2);
  limits.max_model_len = 2;
  RecordingRunner empty;
  warm_up(empty, limits, cache_of(1, 100));
  ASSERT_EQ(empty.steps.size(), 1U);
  EXPECT_TRUE(empty.steps[0].scheduled.empty());
}

}  // namespace
}  // namespace warprow
