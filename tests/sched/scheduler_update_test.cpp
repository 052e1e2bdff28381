// SPDX-License-Identifier: Apache-2.0
#include "sched/scheduler.h"
#include "tests/sched/scheduler_rig.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

// Outputs that arrive late, twice, for an unknown request or never, and the ways a request ends.
namespace warprow {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::small_config;
using testing::tokens_from;
using Bench = testing::SchedulerRig;

// An abort while a step is in flight. The row is reused at once.
TEST(Scheduler, AbortInFlightWithTheRowReused) {
  SchedulerConfig config = small_config();
  config.max_num_seqs = 1;
  config.max_concurrent_steps = 2;
  Bench bench(config);
  bench.runner.token = 111;
  bench.add(1, tokens_from(0, 5));
  bench.launch();
  EXPECT_TRUE(bench.scheduler.abort_request(1));
  EXPECT_FALSE(bench.scheduler.abort_request(1));
  bench.add(1, tokens_from(50, 5));  // with the same id
  bench.runner.token = 222;
  bench.launch();
  EXPECT_THAT(bench.step.finished_rows, ElementsAre(RowId{0}));
  ASSERT_EQ(bench.step.new_rows.size(), 1U);
  EXPECT_EQ(bench.step.new_rows[0].row, RowId{0});
  EXPECT_EQ(bench.step.new_rows[0].generation, 2U);
  bench.collect();
  EXPECT_THAT(bench.deltas, IsEmpty());
  bench.collect();
  ASSERT_EQ(bench.deltas.size(), 1U);
  EXPECT_EQ(bench.deltas[0].id, 1U);
}

TEST(Scheduler, ResultsOfAnotherGenerationAreDropped) {
  Bench bench(small_config());
  bench.add(1, tokens_from(0, 5));
  bench.launch();
  RowOutput stale = bench.pending[0].rows[0];
  stale.generation = 0;
  bench.pending[0].rows.insert(bench.pending[0].rows.begin(), stale);
  bench.collect();
  EXPECT_EQ(bench.deltas.size(), 1U);
}

TEST(Scheduler, AFailedRowEndsItsRequestOnly) {
  SchedulerConfig config = small_config();
  config.max_concurrent_steps = 2;
  Bench bench(config);
  bench.add(1, tokens_from(0, 5));
  bench.add(2, tokens_from(50, 5));
  bench.launch();
  bench.launch();
  RowOutput& row = bench.pending[0].rows[0];
  row.failure = RowFailure::kNothingLeft;
  row.tokens.count = 0;
  bench.collect();
  RequestDelta failed{1, {0, 0}, FinishReason::kError, -1, 0, RowFailure::kNothingLeft};
  failed.row = RowId{0};
  failed.generation = 1;
  RequestDelta other{2, {1, 1}};
  other.row = RowId{1};
  other.generation = 1;
  EXPECT_THAT(bench.deltas, ElementsAre(failed, other));
  bench.collect();
  ASSERT_EQ(bench.deltas.size(), 1U);
  EXPECT_EQ(bench.deltas[0].id, 2U);
}

TEST(Scheduler, AMissingResultIsOurMistake) {
  Bench bench(small_config());
  bench.add(1, tokens_from(0, 5));
  bench.launch();
  bench.pending[0].rows.clear();
  const ScopedCheckThrows throws;
  EXPECT_THROW(bench.collect(), CheckFailure);
}

TEST(Scheduler, AbortWaitingAndFinishRunning) {
  SchedulerConfig config = small_config();
  config.max_num_seqs = 1;
  Bench bench(config);
  bench.add(1, tokens_from(0, 5));
  bench.add(2, tokens_from(0, 5));
  bench.run_step();
  EXPECT_TRUE(bench.scheduler.abort_request(2));
  EXPECT_TRUE(bench.scheduler.finish_request(1));
  EXPECT_TRUE(bench.scheduler.has_work());
  EXPECT_TRUE(bench.run_step());
  EXPECT_THAT(bench.step.finished_rows, ElementsAre(RowId{0}));
  EXPECT_FALSE(bench.scheduler.has_work());
}

FinishReason end_with(TokenId token, int32_t min_tokens, TokenId& stop_id, int32_t& num_outputs) {
  Bench bench(small_config());
  Request request;
  request.id = 1;
  request.prompt = tokens_from(0, 5);
  request.max_tokens = 4;
  request.params.min_tokens = min_tokens;
  request.eos_token_ids = {2};
  request.stop_token_ids = {2, 9};
  bench.add(request);
  bench.runner.token = token;
  for (num_outputs = 1;; ++num_outputs) {
    bench.run_step();
    if (bench.deltas[0].reason != FinishReason::kNone) {
      stop_id = bench.deltas[0].stop_token_id;
      return bench.deltas[0].reason;
    }
  }
}

TEST(Scheduler, StopIdsTravelForMinTokensOnly) {
  Bench bench(small_config());
  Request request;
  request.prompt = tokens_from(0, 5);
  request.max_tokens = 4;
  request.eos_token_ids = {2, 3};
  request.stop_token_ids = {9};
  for (const int32_t min_tokens : {0, 1, 3}) {
    request.id = static_cast<uint64_t>(min_tokens + 1);
    request.params.min_tokens = min_tokens;
    bench.add(request);
  }
  bench.run_step();
  ASSERT_EQ(bench.step.new_rows.size(), 3U);
  EXPECT_EQ(bench.step.new_rows[0].stop_ids, (Span32{0, 0}));
  EXPECT_EQ(bench.step.new_rows[1].stop_ids, (Span32{0, 3}));
  EXPECT_EQ(bench.step.new_rows[2].stop_ids, (Span32{3, 3}));
  EXPECT_THAT(bench.step.stop_ids, ElementsAre(2, 3, 9, 2, 3, 9));
}

TEST(Scheduler, FinishReasons) {
  TokenId stop_id = 0;
  int32_t num_outputs = 0;
  EXPECT_EQ(end_with(2, 0, stop_id, num_outputs),
            FinishReason::kStop);  // EOS takes precedence over the stop id
  EXPECT_EQ(stop_id, -1);
  EXPECT_EQ(num_outputs, 1);
  EXPECT_EQ(end_with(9, 0, stop_id, num_outputs), FinishReason::kStop);
  EXPECT_EQ(stop_id, 9);
  EXPECT_EQ(end_with(9, 2, stop_id, num_outputs), FinishReason::kStop);
  EXPECT_EQ(num_outputs, 3);
  EXPECT_EQ(end_with(5, 0, stop_id, num_outputs), FinishReason::kLength);
  EXPECT_EQ(stop_id, -1);
  EXPECT_EQ(num_outputs, 4);
}

// A runner's output for a step whose rows were all withheld.
ModelRunnerOutput nothing_sampled(const SchedulerOutput& step) {
  ModelRunnerOutput out;
  out.step = step.step;
  for (const ScheduledRow& row : step.scheduled) {
    RowOutput& result = out.rows.emplace_back();
    result.row = row.row;
    result.generation = 1;
    result.kind = RowResult::kTokens;
    result.num_rejected = row.num_logits;
  }
  return out;
}

TEST(Scheduler, AWithheldRowComputesItsLastTokenAgain) {
  SchedulerConfig config = small_config();
  config.max_concurrent_steps = 2;
  Bench bench(config);
  Request request;
  request.id = 1;
  request.prompt = tokens_from(0, 5);
  request.grammar = 3;
  bench.add(request);
  ASSERT_TRUE(bench.scheduler.schedule(bench.step));
  EXPECT_THAT(bench.step.grammar_rows, ElementsAre(RowId{0}));
  EXPECT_EQ(bench.scheduler.grammar_of(RowId{0}), 3);
  const ModelRunnerOutput output = nothing_sampled(bench.step);
  bench.scheduler.withhold(RowId{0});
  bench.scheduler.check_invariants();
  EXPECT_FALSE(bench.scheduler.schedule(bench.step)) << "held";
  bench.scheduler.update_from_output(output, bench.deltas);
  EXPECT_THAT(bench.deltas, IsEmpty());
  EXPECT_FALSE(bench.scheduler.schedule(bench.step)) << "still held";
  bench.scheduler.resume(1);
  ASSERT_TRUE(bench.scheduler.schedule(bench.step));
  EXPECT_THAT(bench.plan(), ElementsAre(std::pair(1, 4)));
  EXPECT_THAT(bench.step.grammar_rows, ElementsAre(RowId{0}));
  bench.scheduler.check_invariants();
  ModelRunnerOutput sampled = nothing_sampled(bench.step);
  sampled.rows[0].tokens = {0, 1};
  sampled.rows[0].num_rejected = 0;
  sampled.token_ids = {77};
  bench.scheduler.update_from_output(sampled, bench.deltas);
  ASSERT_EQ(bench.deltas.size(), 1U);
  EXPECT_EQ(bench.deltas[0].grammar, 3);
}

// The prefix hit of a new request whose prompt begins with these tokens.
int32_t prefix_hit_of(Bench& bench, uint64_t id, std::vector<TokenId> prefix) {
  prefix.push_back(99);
  bench.add(id, std::move(prefix));
  EXPECT_TRUE(bench.scheduler.schedule(bench.step));
  EXPECT_EQ(bench.step.new_rows.size(), 1U);
  return bench.step.new_rows.front().num_computed_tokens;
}

TEST(Scheduler, AWithheldRowWritesIntoNoSharedBlock) {
  SchedulerConfig config = small_config();
  config.max_concurrent_steps = 4;
  for (const bool decodes : {false, true}) {  // whether a decode step fills the block
    Bench bench(config);
    Request request;
    request.id = 1;
    request.prompt = tokens_from(0, decodes ? 15 : 16);
    request.grammar = 0;
    bench.add(request);
    const std::vector<TokenId> block = tokens_from(0, 16);
    bench.runner.token = 15;
    ASSERT_TRUE(bench.launch());
    if (decodes) {
      ASSERT_TRUE(bench.launch());
      bench.collect();
    }
    const ModelRunnerOutput output = nothing_sampled(bench.step);
    bench.scheduler.withhold(RowId{0});
    EXPECT_EQ(prefix_hit_of(bench, 2, block), 0) << decodes;
    const ModelRunnerOutput newcomers = nothing_sampled(bench.step);
    bench.scheduler.abort_request(2);
    bench.scheduler.update_from_output(output, bench.deltas);
    bench.scheduler.update_from_output(newcomers, bench.deltas);

    bench.scheduler.resume(1);
    ASSERT_TRUE(bench.scheduler.schedule(bench.step));
    EXPECT_THAT(bench.plan(), ElementsAre(std::pair(1, 15)));
    ModelRunnerOutput sampled = nothing_sampled(bench.step);
    sampled.rows[0].tokens = {0, 1};
    sampled.rows[0].num_rejected = 0;
    sampled.token_ids = {77};
    bench.scheduler.update_from_output(sampled, bench.deltas);
    EXPECT_EQ(prefix_hit_of(bench, 3, block), 16) << decodes;
    bench.scheduler.check_invariants();
  }
}

TEST(Scheduler, AWithheldRequestMayEnd) {
  Bench bench(small_config());
  Request request;
  request.id = 1;
  request.prompt = tokens_from(0, 5);
  request.grammar = 0;
  bench.add(request);
  ASSERT_TRUE(bench.scheduler.schedule(bench.step));
  const ModelRunnerOutput output = nothing_sampled(bench.step);
  bench.scheduler.withhold(RowId{0});
  EXPECT_TRUE(bench.scheduler.abort_request(1));
  EXPECT_EQ(bench.scheduler.grammar_of(RowId{0}), -1);
  bench.scheduler.resume(1);
  bench.scheduler.update_from_output(output, bench.deltas);
  EXPECT_THAT(bench.deltas, IsEmpty());
  bench.scheduler.check_invariants();
}

TEST(Scheduler, APrefillChunkWantsNoMask) {
  Bench bench(small_config());
  Request request;
  request.id = 1;
  request.prompt = tokens_from(0, 70);
  request.grammar = 0;
  bench.add(request);
  ASSERT_TRUE(bench.launch());
  EXPECT_THAT(bench.step.grammar_rows, IsEmpty());
  bench.collect();
  ASSERT_TRUE(bench.launch());
  EXPECT_THAT(bench.step.grammar_rows, ElementsAre(RowId{0}));
}

// A pooling row ends its request with a vector and no token. One that needs every token computed takes no cached prefix.
TEST(Scheduler, APooledRowEndsItsRequest) {
  Bench bench(small_config());
  const auto pool = [&](uint64_t id, uint32_t method) {
    Request request;
    request.id = id;
    request.prompt = tokens_from(0, 100);
    request.max_tokens = 1;
    request.params.flags = method;
    bench.add(request);
    std::vector<std::pair<int32_t, int32_t>> steps;
    do {
      ASSERT_TRUE(bench.launch());
      steps.push_back(bench.plan().front());
      bench.collect();
    } while (bench.deltas.empty());
    ASSERT_EQ(bench.deltas.size(), 1U);
    EXPECT_EQ(bench.deltas[0].id, id);
    EXPECT_EQ(bench.deltas[0].reason, FinishReason::kStop);
    EXPECT_EQ(bench.deltas[0].tokens.count, 0);
    EXPECT_EQ(bench.deltas[0].pooled, (Span32{0, 1}));
    EXPECT_EQ(bench.scheduler.stats().num_running, 0);
    const bool cached = method == SamplingParams::kPoolLast && id > 1;
    EXPECT_EQ(steps.front().second, cached ? 96 : 0);
    EXPECT_EQ(bench.deltas[0].num_cached_tokens, steps.front().second);
    EXPECT_EQ(steps.size(), cached ? 1U : 2U);
  };
  pool(1, SamplingParams::kPoolLast);
  pool(2, SamplingParams::kPoolLast);
  pool(3, SamplingParams::kPoolFirst);
  pool(4, SamplingParams::kPoolMean);
  pool(5, SamplingParams::kPoolAll);
}

}  // namespace
}  // namespace warprow
