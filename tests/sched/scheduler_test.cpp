// SPDX-License-Identifier: Apache-2.0
#include "sched/scheduler.h"

#include "tests/sched/scheduler_rig.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::small_config;
using testing::tokens_from;
using Bench = testing::SchedulerRig;
using Plan = std::vector<std::pair<int32_t, int32_t>>;

TEST(Scheduler, OneRequestFromPromptToLength) {
  Bench bench(small_config());
  bench.add(1, tokens_from(100, 5), 3);
  ASSERT_TRUE(bench.run_step());
  ASSERT_EQ(bench.step.new_rows.size(), 1U);
  const NewRow& row = bench.step.new_rows[0];
  EXPECT_EQ(row.generation, 1U);
  EXPECT_EQ(row.prompt_len, 5);
  EXPECT_EQ(row.prefill_len, 5);
  EXPECT_EQ(row.num_computed_tokens, 0);
  EXPECT_EQ(row.tokens, (Span32{0, 5}));
  EXPECT_EQ(bench.step.token_ids, tokens_from(100, 5));
  ASSERT_EQ(bench.step.block_appends.size(), 1U);
  EXPECT_EQ(bench.step.block_appends[0], (BlockAppend{row.row, 0, 0, {0, 1}}));
  EXPECT_EQ(bench.plan(), (Plan{{5, 0}}));
  EXPECT_EQ(bench.step.total_num_tokens, 5);
  RequestDelta first{1, {0, 1}};
  first.row = RowId{0};
  first.generation = 1;
  EXPECT_THAT(bench.deltas, ElementsAre(first));

  ASSERT_TRUE(bench.run_step());
  EXPECT_THAT(bench.step.new_rows, IsEmpty());
  EXPECT_THAT(bench.step.block_appends, IsEmpty());
  EXPECT_EQ(bench.plan(), (Plan{{1, 5}}));
  ASSERT_TRUE(bench.run_step());
  EXPECT_EQ(bench.deltas[0].reason, FinishReason::kLength);
  EXPECT_TRUE(bench.scheduler.has_work());

  // The last step only releases the row.
  ASSERT_TRUE(bench.run_step());
  EXPECT_THAT(bench.step.finished_rows, ElementsAre(row.row));
  EXPECT_THAT(bench.step.scheduled, IsEmpty());
  EXPECT_FALSE(bench.scheduler.has_work());
  EXPECT_FALSE(bench.launch());
  EXPECT_EQ(bench.scheduler.stats().num_kv_blocks_used, 0);
}

// A budget of 16 tokens, two decode rows and a waiting prompt of 40: chunks of 14, 14 and 12, then the first sampled
// token.
TEST(Scheduler, ChunksBesideDecodes) {
  SchedulerConfig config = small_config();
  config.max_num_batched_tokens = 16;
  Bench bench(config);
  bench.add(1, tokens_from(0, 4));
  bench.add(2, tokens_from(50, 4));
  bench.run_step();
  bench.add(3, tokens_from(100, 40));
  bench.run_step();
  EXPECT_EQ(bench.plan(), (Plan{{1, 4}, {1, 4}, {14, 0}}));
  EXPECT_EQ(bench.deltas.size(), 2U);
  bench.run_step();
  EXPECT_EQ(bench.plan(), (Plan{{1, 5}, {1, 5}, {14, 14}}));
  bench.run_step();
  EXPECT_EQ(bench.plan(), (Plan{{1, 6}, {1, 6}, {12, 28}}));
  EXPECT_EQ(bench.deltas.size(), 3U);
  const SchedulerStats stats = bench.scheduler.stats();
  EXPECT_EQ(stats.num_steps, 4);
  EXPECT_EQ(stats.num_mixed_steps, 3);
  EXPECT_EQ(stats.num_partial_prefill_steps, 2);
  EXPECT_EQ(stats.num_scheduled_tokens, 8 + 16 + 16 + 14);
  EXPECT_EQ(stats.num_running, 3);
}

// Prompt 10, max_tokens 3, one step ahead, no EOS: exactly 3 steps.
TEST(Scheduler, CertainlyFinishedIsNotScheduled) {
  SchedulerConfig config = small_config();
  config.max_concurrent_steps = 2;
  Bench bench(config);
  bench.add(1, tokens_from(0, 10), 3);
  ASSERT_TRUE(bench.launch());
  EXPECT_EQ(bench.plan(), (Plan{{10, 0}}));
  ASSERT_TRUE(bench.launch());
  EXPECT_EQ(bench.plan(), (Plan{{1, 10}}));  // its input token is not known to the host yet
  EXPECT_FALSE(bench.launch());              // two in flight
  bench.collect();
  ASSERT_TRUE(bench.launch());
  EXPECT_EQ(bench.plan(), (Plan{{1, 11}}));
  bench.collect();
  EXPECT_FALSE(bench.launch());
  bench.collect();
  EXPECT_EQ(bench.deltas[0].reason, FinishReason::kLength);
  EXPECT_EQ(bench.scheduler.stats().num_steps, 3);
  EXPECT_EQ(bench.scheduler.stats().max_steps_in_flight, 2);
}

int32_t second_hit(int32_t prompt_len, uint64_t salt) {
  Bench bench(small_config());
  bench.add(1, tokens_from(0, prompt_len), 1);
  bench.run_step();
  Request request;
  request.id = 2;
  request.prompt = tokens_from(0, prompt_len);
  request.max_tokens = 1;
  request.cache_salt = salt;
  bench.add(request);
  bench.run_step();
  EXPECT_EQ(bench.deltas[0].num_cached_tokens, bench.step.new_rows[0].num_computed_tokens);
  EXPECT_EQ(bench.scheduler.stats().num_prefix_hit_tokens, bench.deltas[0].num_cached_tokens);
  return bench.deltas[0].num_cached_tokens;
}

// At least one prompt token is always computed.
TEST(Scheduler, PrefixHits) {
  EXPECT_EQ(second_hit(32, 0), 16);
  EXPECT_EQ(second_hit(33, 0), 32);
  EXPECT_EQ(second_hit(33, 5), 0);
  EXPECT_EQ(second_hit(15, 0), 0);
}

TEST(Scheduler, PrefixHitSharesBlocksOfALivingRequest) {
  Bench bench(small_config());
  bench.add(1, tokens_from(0, 40));
  bench.run_step();
  bench.add(2, tokens_from(0, 36));
  bench.add(3, tokens_from(0, 40));
  bench.run_step();
  const auto first = bench.scheduler.block_table(1, 0);
  const auto second = bench.scheduler.block_table(2, 0);
  EXPECT_EQ(first[0], second[0]);
  EXPECT_EQ(first[1], second[1]);
  EXPECT_NE(first[2], second[2]);  // neither block is full
  EXPECT_EQ(bench.scheduler.pool().num_refs(first[0]), 3);
  EXPECT_EQ(bench.plan(), (Plan{{1, 40}, {4, 32}, {8, 32}}));
}

TEST(Scheduler, OutputsAreCachedToo) {
  Bench bench(small_config());
  bench.add(1, tokens_from(0, 10), 30);
  while (bench.scheduler.has_work()) {
    bench.run_step();
  }
  // The next turn of a chat: the first turn's prompt and answer (all 7s), and a new question. 39 tokens were computed.
  std::vector<TokenId> prompt = tokens_from(0, 10);
  prompt.resize(40, 7);
  prompt.resize(50, 99);
  bench.add(2, prompt);
  bench.run_step();
  EXPECT_EQ(bench.deltas[0].num_cached_tokens, 32);
}

// Running [A, B, C]: A needs blocks and none is free. C is preempted, and because that is not enough, B too.
TEST(Scheduler, PreemptsTheLastAdmittedFirst) {
  SchedulerConfig config = small_config(/*num_blocks=*/8, /*block_size=*/2);
  config.max_model_len = 14;
  config.max_num_batched_tokens = 8;
  config.long_prefill_token_threshold = 4;
  Bench bench(config);
  bench.add(1, tokens_from(0, 12), 1);
  bench.add(2, tokens_from(100, 3), 3);
  bench.run_step();
  EXPECT_EQ(bench.plan(), (Plan{{4, 0}, {3, 0}}));
  bench.add(3, tokens_from(200, 2), 3);
  bench.run_step();
  EXPECT_EQ(bench.plan(), (Plan{{4, 4}, {1, 3}, {2, 0}}));
  EXPECT_EQ(bench.scheduler.stats().num_kv_blocks_used, 7);
  const RowId row_a = bench.step.scheduled[0].row;
  const RowId row_b = bench.step.scheduled[1].row;
  const RowId row_c = bench.step.scheduled[2].row;
  bench.run_step();
  EXPECT_THAT(bench.step.preempted_rows, ElementsAre(row_c, row_b));
  EXPECT_EQ(bench.plan(), (Plan{{4, 8}}));
  EXPECT_EQ(bench.step.scheduled[0].row, row_a);
  EXPECT_EQ(bench.deltas[0].reason, FinishReason::kLength);
  // Preempted requests are readmitted in arrival order. Prompt and outputs are their prefill.
  bench.run_step();
  ASSERT_EQ(bench.step.new_rows.size(), 2U);
  EXPECT_EQ(bench.step.new_rows[0].prompt_len, 3);
  EXPECT_EQ(bench.step.new_rows[0].prefill_len, 5);
  EXPECT_EQ(bench.step.new_rows[1].prompt_len, 2);
  EXPECT_EQ(bench.step.new_rows[1].prefill_len, 3);
  EXPECT_EQ(bench.scheduler.stats().num_preemptions, 2);
}

// A request that needs a block is preempted itself if it was admitted last.
TEST(Scheduler, TheLastPreemptsItself) {
  SchedulerConfig config = small_config(/*num_blocks=*/8, /*block_size=*/2);
  config.max_model_len = 14;
  Bench bench(config);
  bench.add(1, tokens_from(0, 4), 10);
  bench.add(2, tokens_from(10, 3), 10);
  bench.add(3, tokens_from(20, 4), 9);
  bench.run_step();  // 2 + 2 + 2 of 7 blocks
  EXPECT_EQ(bench.scheduler.stats().num_running, 3);
  bench.run_step();
  EXPECT_EQ(bench.plan(), (Plan{{1, 4}, {1, 3}}));
  EXPECT_EQ(bench.step.preempted_rows.size(), 1U);
  while (bench.scheduler.has_work()) {
    ASSERT_TRUE(bench.run_step());
  }
}

TEST(Scheduler, PreemptedResumesAsNewWithItsOutputs) {
  SchedulerConfig config = small_config(/*num_blocks=*/6, /*block_size=*/4);
  config.max_model_len = 20;
  Bench bench(config);
  bench.add(1, tokens_from(0, 8), 5);
  bench.add(2, tokens_from(50, 7), 12);
  bench.run_step();  // 2 + 2 of 5 blocks, one output each
  bench.run_step();  // 3 + 2 blocks: 9 and 8 tokens computed
  bench.run_step();  // the second needs a third block: preempted with 2 outputs
  ASSERT_EQ(bench.step.preempted_rows.size(), 1U);
  EXPECT_EQ(bench.plan(), (Plan{{1, 9}}));
  bench.run_step();
  bench.run_step();
  EXPECT_EQ(bench.deltas[0].reason, FinishReason::kLength);
  bench.run_step();
  ASSERT_EQ(bench.step.new_rows.size(), 1U);
  EXPECT_EQ(bench.step.new_rows[0].prompt_len, 7);
  EXPECT_EQ(bench.step.new_rows[0].prefill_len, 9);
  EXPECT_EQ(bench.step.new_rows[0].generation,
            1U + (bench.step.new_rows[0].row == bench.step.finished_rows[0]));
  std::vector<TokenId> known = tokens_from(50, 7);
  known.resize(9, 7);
  EXPECT_EQ(bench.step.token_ids, known);
  // Its blocks 0 and 1 were full and are still cached.
  EXPECT_EQ(bench.step.new_rows[0].num_computed_tokens, 8);
  EXPECT_EQ(bench.deltas[0].num_cached_tokens, 0);  // the count at its first admission
}

TEST(Scheduler, PreemptionKeepsTheOutputInFlight) {
  SchedulerConfig config = small_config(/*num_blocks=*/5, /*block_size=*/2);
  config.max_model_len = 8;
  config.max_concurrent_steps = 2;
  config.enable_prefix_caching = false;
  Bench bench(config);
  TokenId next = 1000;
  bench.runner.token_of = [&next](RowId) { return next++; };
  bench.add(1, tokens_from(0, 4), 4);
  bench.add(2, tokens_from(10, 4), 3);
  bench.launch();  // all 4 blocks; both sample: 1000, 1001
  bench.launch();  // 1 needs a block: 2 is preempted while its 1001 is in flight
  ASSERT_EQ(bench.step.preempted_rows.size(), 1U);
  bench.collect();
  ASSERT_EQ(bench.deltas.size(), 2U);
  EXPECT_EQ(bench.deltas[1].id, 2U);
  while (bench.scheduler.has_work() && bench.step.new_rows.empty()) {
    bench.launch() ? void() : bench.collect();
    if (bench.scheduler.num_in_flight() == 2) {
      bench.collect();
    }
  }
  ASSERT_EQ(bench.step.new_rows.size(), 1U);
  EXPECT_THAT(bench.step.token_ids, ElementsAre(10, 11, 12, 13, 1001));
  EXPECT_EQ(bench.step.new_rows[0].prompt_len, 4);
}

TEST(Scheduler, PriorityPreemptsTheLeastUrgent) {
  SchedulerConfig config = small_config(/*num_blocks=*/7, /*block_size=*/2);
  config.policy = SchedulerConfig::Policy::kPriority;
  config.max_model_len = 12;
  Bench bench(config);
  bench.add(1, tokens_from(0, 3), 8, /*priority=*/5);
  bench.add(2, tokens_from(10, 4), 8, /*priority=*/1);
  bench.add(3, tokens_from(20, 4), 8, /*priority=*/1);
  bench.run_step();
  EXPECT_EQ(bench.step.token_ids.front(), 10);  // the urgent requests were admitted first
  ASSERT_EQ(bench.step.scheduled.size(), 3U);
  const RowId least_urgent = bench.step.scheduled[2].row;
  bench.run_step();
  EXPECT_THAT(bench.step.preempted_rows, ElementsAre(least_urgent));
  EXPECT_EQ(bench.plan(), (Plan{{1, 4}, {1, 4}}));
}

// The victim may already be planned in the same step. Its tokens, blocks and budget are then given back.
TEST(Scheduler, PriorityTakesBackAPlannedRow) {
  SchedulerConfig config = small_config(/*num_blocks=*/6, /*block_size=*/2);
  config.policy = SchedulerConfig::Policy::kPriority;
  config.max_model_len = 10;
  Bench bench(config);
  bench.add(1, tokens_from(0, 4), 4, /*priority=*/5);
  bench.run_step();
  bench.add(2, tokens_from(10, 4), 4, /*priority=*/1);
  bench.run_step();  // 3 + 2 blocks
  bench.run_step();
  // Request 1 was planned first, then request 2 needed a block.
  EXPECT_EQ(bench.step.preempted_rows.size(), 1U);
  EXPECT_EQ(bench.plan(), (Plan{{1, 4}}));
  EXPECT_EQ(bench.step.total_num_tokens, 1);
  ASSERT_EQ(bench.step.block_appends.size(), 1U);
  EXPECT_EQ(bench.step.block_appends[0].row, bench.step.scheduled[0].row);
  EXPECT_EQ(bench.deltas.size(), 1U);
}

TEST(Scheduler, TheContextEndsARequest) {
  SchedulerConfig config = small_config();
  config.max_model_len = 12;
  Bench bench(config);
  bench.add(1, tokens_from(0, 10), 1000);
  bench.run_step();
  bench.run_step();
  EXPECT_EQ(bench.deltas[0].reason, FinishReason::kLength);
}

TEST(Scheduler, RefusesWhatCanNeverRun) {
  SchedulerConfig config = small_config(/*num_blocks=*/5);
  config.max_num_batched_tokens = 32;
  const Scheduler scheduler(config);
  EXPECT_THAT(scheduler.check(0, 1).error().message, HasSubstr("empty"));
  EXPECT_THAT(scheduler.check(1, 0).error().message, HasSubstr("max_tokens is 0"));
  EXPECT_THAT(scheduler.check(512, 1).error().message, HasSubstr("512 tokens; max_model_len 512"));
  EXPECT_THAT(scheduler.check(60, 6).error().message,
              HasSubstr("need 5 KV blocks; the cache has 4"));
  EXPECT_TRUE(scheduler.check(60, 5));
  EXPECT_TRUE(scheduler.check(33, 1));
  config.enable_chunked_prefill = false;
  const Scheduler whole(config);
  EXPECT_TRUE(whole.check(32, 1));
  EXPECT_THAT(whole.check(33, 1).error().message, HasSubstr("max_num_batched_tokens 32"));
}

TEST(Scheduler, WithoutChunksAPromptWaitsForRoom) {
  SchedulerConfig config = small_config();
  config.max_num_batched_tokens = 32;
  config.enable_chunked_prefill = false;
  Bench bench(config);
  bench.add(1, tokens_from(0, 20), 2);
  bench.add(2, tokens_from(100, 32), 2);
  bench.run_step();
  EXPECT_EQ(bench.plan(), (Plan{{20, 0}}));
  bench.run_step();
  EXPECT_EQ(bench.plan(), (Plan{{1, 20}}));
  bench.run_step();
  EXPECT_EQ(bench.plan(), (Plan{{32, 0}}));
}

TEST(Scheduler, LongPrefillThreshold) {
  SchedulerConfig config = small_config();
  config.long_prefill_token_threshold = 10;
  Bench bench(config);
  bench.add(1, tokens_from(0, 25));
  bench.add(2, tokens_from(100, 5));
  bench.run_step();
  EXPECT_EQ(bench.plan(), (Plan{{10, 0}, {5, 0}}));
  bench.run_step();
  EXPECT_EQ(bench.plan(), (Plan{{10, 10}, {1, 5}}));
}

// A long prompt gets the whole step if all other prompts are long too.
TEST(Scheduler, TheThresholdIsForTheSakeOfOthers) {
  SchedulerConfig config = small_config();
  config.long_prefill_token_threshold = 10;
  Bench bench(config);
  bench.add(1, tokens_from(0, 400));
  bench.run_step();
  EXPECT_EQ(bench.plan(), (Plan{{64, 0}}));
  bench.add(2, tokens_from(1000, 100));
  bench.run_step();
  EXPECT_EQ(bench.plan(), (Plan{{64, 64}}));
  // The short prompt is served first although it arrived last.
  bench.add(3, tokens_from(2000, 5), 2);
  bench.run_step();
  EXPECT_EQ(bench.plan(), (Plan{{10, 128}, {10, 0}, {5, 0}}));
  bench.run_step();
  EXPECT_EQ(bench.plan(), (Plan{{10, 138}, {10, 10}, {1, 5}}));
  EXPECT_EQ(bench.deltas[0].id, 3U);
  EXPECT_EQ(bench.deltas[0].reason, FinishReason::kLength);
  bench.run_step();
  EXPECT_EQ(bench.plan(), (Plan{{64, 148}}));
}

TEST(Scheduler, TheThresholdSparesPromptsOfOrdinaryLength) {
  SchedulerConfig config = small_config();
  config.long_prefill_token_threshold = 10;
  config.long_prompt_len = 100;
  Bench bench(config);
  bench.add(1, tokens_from(0, 100));
  bench.add(2, tokens_from(1000, 5));
  bench.run_step();
  EXPECT_EQ(bench.plan(), (Plan{{64, 0}}));
  bench.scheduler.abort_all();
  bench.add(3, tokens_from(2000, 101));
  bench.add(4, tokens_from(3000, 5));
  bench.run_step();
  EXPECT_EQ(bench.plan(), (Plan{{10, 0}, {5, 0}}));
}

// The threshold reserves no budget for a request that cannot be admitted because all rows are taken.
TEST(Scheduler, TheThresholdIsNotForWhoHasNoRow) {
  SchedulerConfig config = small_config();
  config.long_prefill_token_threshold = 10;
  config.max_num_seqs = 1;
  Bench bench(config);
  bench.add(1, tokens_from(0, 200));
  bench.run_step();
  bench.add(2, tokens_from(1000, 5));
  bench.run_step();
  EXPECT_EQ(bench.plan(), (Plan{{64, 64}}));
}

TEST(Scheduler, TheThresholdIsNotForWhoHasNoBlocks) {
  SchedulerConfig config = small_config(/*num_blocks=*/14);
  config.enable_prefix_caching = false;
  config.long_prefill_token_threshold = 10;
  config.long_prompt_len = 150;
  Bench bench(config);
  bench.add(1, tokens_from(0, 200), 1);
  bench.run_step();
  bench.run_step();
  bench.add(2, tokens_from(1000, 100), 1);
  bench.run_step();
  EXPECT_EQ(bench.plan(),
            (Plan{{10, 128}}));  // budget is reserved for a request that finds too few blocks
  bench.run_step();
  EXPECT_EQ(bench.plan(), (Plan{{62, 138}}));
}

// Why the first waiting request got no row.
TEST(Scheduler, SaysWhyARequestWaits) {
  SchedulerConfig config = small_config();
  config.max_num_seqs = 2;
  Bench rows(config);
  for (uint64_t id = 1; id <= 3; ++id) {
    rows.add(id, tokens_from(static_cast<int32_t>(1000 * id), 8));
  }
  rows.run_step();
  EXPECT_EQ(rows.scheduler.stats().wait_reason, WaitReason::kRows);
  EXPECT_EQ(rows.scheduler.request_of(rows.step.scheduled[1].row), 2U);

  Bench toks(small_config());
  toks.add(1, tokens_from(0, 64));
  toks.add(2, tokens_from(1000, 8));
  toks.run_step();
  EXPECT_EQ(toks.scheduler.stats().wait_reason, WaitReason::kTokens);
  toks.run_step();
  EXPECT_EQ(toks.scheduler.stats().wait_reason, WaitReason::kNone);

  Bench ration(small_config());
  ration.max_mixed_prefill = 16;
  ration.add(1, tokens_from(0, 4));
  ration.run_step();
  ration.add(2, tokens_from(1000, 40));
  ration.add(3, tokens_from(2000, 40));
  ration.run_step();
  EXPECT_EQ(ration.scheduler.stats().wait_reason, WaitReason::kRation);

  Bench blocks(small_config(6));  // five of 16 tokens
  blocks.add(1, tokens_from(0, 40), 20);
  blocks.add(2, tokens_from(1000, 60), 10);
  blocks.run_step();
  EXPECT_EQ(blocks.scheduler.stats().wait_reason, WaitReason::kBlocks);
  blocks.run_step();
  EXPECT_EQ(blocks.scheduler.stats().wait_reason, WaitReason::kBlocks);  // not tried again

  Bench full(small_config(6));
  full.add(1, tokens_from(0, 30), 40);
  full.add(2, tokens_from(1000, 30), 40);
  while (full.scheduler.stats().num_preemptions == 0) {
    ASSERT_TRUE(full.run_step());
  }
  EXPECT_EQ(full.scheduler.stats().wait_reason, WaitReason::kPreemption);
}

// A long prompt leaves half of the few prompt tokens that are allowed beside decode rows.
TEST(Scheduler, TheThresholdCountsBesideTheRation) {
  SchedulerConfig config = small_config();
  config.long_prefill_token_threshold = 32;
  Bench bench(config);
  bench.max_mixed_prefill = 16;
  bench.add(1, tokens_from(0, 4));
  bench.run_step();
  bench.add(2, tokens_from(1000, 400));
  bench.add(3, tokens_from(2000, 5));
  bench.run_step();
  EXPECT_EQ(bench.plan(), (Plan{{1, 4}, {8, 0}, {5, 0}}));
  // The threshold reserves nothing for decode rows.
  bench.run_step();
  EXPECT_EQ(bench.plan(), (Plan{{1, 5}, {16, 8}, {1, 5}}));
}

// A chunk of n tokens after c computed ones has n * c query-key pairs.
TEST(Scheduler, ADeepChunkIsLimitedByItsPairs) {
  SchedulerConfig config = small_config();
  config.max_model_len = 1000;
  config.max_prefill_pairs = 64 * 64 * 2;
  config.min_deep_chunk = 20;
  Bench bench(config);
  bench.add(1, tokens_from(0, 600), 1);
  std::vector<int32_t> chunks;
  for (int32_t done = 0; done < 600;) {
    bench.run_step();
    ASSERT_EQ(bench.plan().size(), 1U);
    chunks.push_back(bench.plan()[0].first);
    done += chunks.back();
  }
  EXPECT_EQ(chunks, (std::vector<int32_t>{64, 64, 64, 42, 35, 30, 27, 25, 23, 21, 20,
                                          20, 20, 20, 20, 20, 20, 20, 20, 20, 5}));
}

// Nothing is planned ahead of a step with a deep chunk, so that a new request waits for one such step at most.
TEST(Scheduler, NoStepIsPlannedBehindADeepOne) {
  SchedulerConfig config = small_config();
  config.max_prefill_pairs = 64 * 100;
  config.min_deep_chunk = 8;
  config.max_concurrent_steps = 2;
  Bench bench(config);
  bench.add(1, tokens_from(0, 300), 1);
  ASSERT_TRUE(bench.launch());
  ASSERT_TRUE(bench.launch());
  bench.collect();
  ASSERT_TRUE(bench.launch());
  EXPECT_EQ(bench.plan(), (Plan{{50, 128}}));
  bench.collect();
  EXPECT_FALSE(bench.launch());
  bench.add(2, tokens_from(1000, 5), 1);
  bench.collect();
  ASSERT_TRUE(bench.launch());
  EXPECT_EQ(bench.plan(), (Plan{{35, 178}, {5, 0}}));
}

// Of two deep long prompts the second waits for the first, while short prompts proceed.
TEST(Scheduler, OneLongPrefillInAStepIsDeep) {
  SchedulerConfig config = small_config();
  config.max_prefill_pairs = 64;
  config.min_deep_chunk = 2;
  config.long_prefill_token_threshold = 10;
  config.long_prompt_len = 50;
  Bench bench(config);
  bench.add(1, tokens_from(0, 100), 1);
  bench.add(2, tokens_from(1000, 100), 1);
  bench.add(3, tokens_from(2000, 40), 1);
  bench.run_step();
  EXPECT_EQ(bench.plan(), (Plan{{10, 0}, {10, 0}, {40, 0}}));
  bench.add(4, tokens_from(3000, 50), 1);
  bench.run_step();
  EXPECT_EQ(bench.plan(), (Plan{{6, 10}, {50, 0}}));
}

TEST(Scheduler, TheUrgentAreAdmittedFirst) {
  for (const bool by_priority : {true, false}) {
    SchedulerConfig config = small_config();
    config.policy =
        by_priority ? SchedulerConfig::Policy::kPriority : SchedulerConfig::Policy::kFcfs;
    config.max_num_seqs = 1;
    Bench bench(config);
    bench.add(1, tokens_from(0, 4), 1, /*priority=*/9);
    bench.run_step();
    bench.add(2, tokens_from(10, 4), 1, /*priority=*/5);
    bench.add(3, tokens_from(20, 4), 1, /*priority=*/-1);
    bench.add(4, tokens_from(30, 4), 1, /*priority=*/5);
    std::vector<uint64_t> order;
    while (bench.scheduler.has_work()) {
      bench.run_step();
      for (const RequestDelta& delta : bench.deltas) {
        order.push_back(delta.id);
      }
    }
    EXPECT_THAT(order, by_priority ? ElementsAre(3, 2, 4) : ElementsAre(2, 3, 4));
  }
}

// Beside rows that decode prompts get what schedule() is told, with a minimum of 16, and of 2 for each of these rows.
// Without such rows they get the whole step.
TEST(Scheduler, PromptsAreLimitedBesideDecodes) {
  SchedulerConfig config = small_config();
  config.max_num_seqs = 16;
  Bench bench(config);
  bench.max_mixed_prefill = 19;
  for (uint64_t id = 1; id <= 9; ++id) {
    bench.add(id, tokens_from(static_cast<int32_t>(id) * 50, 4));
  }
  bench.run_step();
  EXPECT_EQ(bench.step.total_num_tokens, 36);
  bench.add(10, tokens_from(1000, 25));
  bench.add(11, tokens_from(2000, 5));
  const auto prompts = [&] {
    Plan plan = bench.plan();
    plan.erase(plan.begin(), plan.begin() + 9);
    return plan;
  };
  bench.max_mixed_prefill = 17;
  bench.run_step();
  EXPECT_EQ(prompts(), (Plan{{18, 0}}));
  bench.max_mixed_prefill = 19;
  bench.run_step();
  EXPECT_EQ(prompts(), (Plan{{7, 18}, {5, 0}}));
  for (uint64_t id = 1; id <= 9; ++id) {
    bench.scheduler.abort_request(id);
  }
  bench.scheduler.abort_request(11);
  bench.add(12, tokens_from(3000, 40));
  bench.max_mixed_prefill = 1;
  bench.run_step();
  EXPECT_EQ(bench.plan(), (Plan{{1, 25}, {16, 0}}));
  EXPECT_EQ(bench.step.max_mixed_prefill, 16);
  bench.scheduler.abort_request(10);
  bench.run_step();
  EXPECT_EQ(bench.plan(), (Plan{{24, 16}}));
}

TEST(Scheduler, WithoutChunksPromptsAreNotLimited) {
  SchedulerConfig config = small_config();
  config.enable_chunked_prefill = false;
  Bench bench(config);
  bench.max_mixed_prefill = 16;
  bench.add(1, tokens_from(0, 4));
  bench.run_step();
  bench.add(2, tokens_from(1000, 40));
  bench.run_step();
  EXPECT_EQ(bench.plan(), (Plan{{1, 4}, {40, 0}}));
}

// A limit that changes from step to step, as times do, is all that another scheduler needs to plan the same steps.
TEST(Scheduler, TheLimitsOfARecordingPlanItsStepsAgain) {
  std::vector<SchedulerOutput> steps;
  const auto run = [&steps](bool records) {
    Bench bench(small_config());
    for (uint64_t id = 1; id <= 6; ++id) {
      bench.add(
          id, tokens_from(static_cast<int32_t>(id) * 200, 40 + 20 * static_cast<int32_t>(id)), 30);
    }
    size_t num_steps = 0;
    bool limited = false;
    for (; bench.scheduler.has_work(); ++num_steps) {
      bench.max_mixed_prefill = records ? 16 + static_cast<int32_t>(num_steps * 7 % 23)
                                        : steps[num_steps].max_mixed_prefill;
      ASSERT_TRUE(bench.run_step());
      limited = limited || bench.scheduler.stats().num_partial_prefill_steps > 0;
      if (records) {
        steps.push_back(bench.step);
      } else {
        EXPECT_EQ(bench.step, steps[num_steps]) << "step " << num_steps;
      }
    }
    EXPECT_TRUE(limited);
    EXPECT_EQ(num_steps, steps.size());
  };
  run(true);
  run(false);
}

TEST(Scheduler, AdmitsOnlyWhatFitsWhole) {
  SchedulerConfig config = small_config(/*num_blocks=*/5);
  Bench bench(config);
  bench.add(1, tokens_from(0, 33), 16);    // needs 3 of 4 blocks, never more
  bench.add(2, tokens_from(100, 17), 16);  // needs 2 blocks: does not fit beside request 1
  bench.add(3, tokens_from(200, 3), 4);    // would fit, but arrived later
  bench.run_step();
  EXPECT_EQ(bench.plan(), (Plan{{33, 0}}));
  bench.run_step();
  EXPECT_EQ(bench.plan(), (Plan{{1, 33}}));
  EXPECT_EQ(bench.scheduler.stats().num_waiting, 2);
  bench.scheduler.abort_request(1);
  bench.run_step();
  EXPECT_EQ(bench.plan(), (Plan{{17, 0}, {3, 0}}));
}

TEST(Scheduler, AWindowHoldsABoundedNumberOfBlocks) {
  SchedulerConfig config = small_config(/*num_blocks=*/12, /*block_size=*/2);
  config.max_num_batched_tokens = 16;
  config.max_model_len = 1024;
  config.kv.groups[0].kind = KvKind::kSlidingWindow;
  config.kv.groups[0].window = 4;
  Bench bench(config);
  EXPECT_TRUE(bench.scheduler.check(1000, 20));  // the limit is all 11 blocks
  bench.add(1, tokens_from(0, 1000), 20);
  while (bench.scheduler.has_work()) {
    ASSERT_TRUE(bench.run_step());
    EXPECT_LE(bench.scheduler.stats().num_kv_blocks_used, 11);
  }
  EXPECT_EQ(bench.scheduler.stats().num_preemptions, 0);
}

TEST(Scheduler, FencedBlocksWaitForTheirStep) {
  SchedulerConfig config = small_config(/*num_blocks=*/5);
  config.max_concurrent_steps = 2;
  config.fence_freed_blocks = true;
  config.enable_prefix_caching = false;
  Bench bench(config);
  bench.add(1, tokens_from(0, 64), 1);
  bench.launch();
  bench.scheduler.abort_request(1);
  bench.add(2, tokens_from(0, 64), 1);
  bench.launch();  // releases the row; no block is free yet
  EXPECT_THAT(bench.step.scheduled, IsEmpty());
  EXPECT_EQ(bench.scheduler.stats().num_kv_blocks_used, 0);
  bench.collect();
  EXPECT_TRUE(bench.launch());
  EXPECT_EQ(bench.plan(), (Plan{{64, 0}}));
}

}  // namespace
}  // namespace warprow
