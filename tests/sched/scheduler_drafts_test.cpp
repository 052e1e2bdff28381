// SPDX-License-Identifier: Apache-2.0
// Scheduling of steps that verify drafts: upper and lower bounds of a row's length.
#include "base/check.h"
#include "tests/sched/scheduler_rig.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::small_config;
using testing::tokens_from;
using Bench = testing::SchedulerRig;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

SchedulerConfig drafts_config(int32_t num_drafts, int32_t max_concurrent_steps) {
  SchedulerConfig config = small_config(64, 4);
  config.num_drafts = num_drafts;
  config.max_concurrent_steps = max_concurrent_steps;
  return config;
}

Request request_of(uint64_t id, std::vector<TokenId> prompt, int32_t max_tokens = 100) {
  Request request;
  request.id = id;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  return request;
}

TEST(SchedulerDrafts, ARowIsPlannedAsIfAllWereAccepted) {
  Bench bench(drafts_config(2, 3));
  bench.add(1, tokens_from(0, 5));
  bench.runner.run_of = [](RowId) { return std::vector<TokenId>{7, 8}; };
  ASSERT_TRUE(bench.launch());
  EXPECT_THAT(bench.step.scheduled, ElementsAre(ScheduledRow{RowId{0}, 5, 0, 0, 1}));
  ASSERT_TRUE(bench.launch());  // exactly one output: 5 tokens are computed
  EXPECT_THAT(bench.step.scheduled, ElementsAre(ScheduledRow{RowId{0}, 3, 5, 2, 3}));
  ASSERT_TRUE(bench.launch());  // at most 1 + 3 outputs: the last of 9 tokens, and two drafts
  EXPECT_THAT(bench.step.scheduled, ElementsAre(ScheduledRow{RowId{0}, 3, 8, 2, 3}));
  EXPECT_EQ(bench.step.total_num_tokens, 3);
  EXPECT_THAT(bench.step.draft_token_ids, IsEmpty()) << "the device has them";
  EXPECT_FALSE(bench.step.scheduled[0].wants_drafts);
  bench.collect();
  bench.collect();  // two tokens of three: 8 known, at most 3 more
  EXPECT_EQ(bench.deltas[0].tokens, (Span32{0, 2}));
  ASSERT_TRUE(bench.launch());
  EXPECT_THAT(bench.plan(), ElementsAre(Pair(3, 10)));
  bench.collect();
  bench.collect();
  ASSERT_TRUE(bench.launch());  // nothing in flight: 12 known
  EXPECT_THAT(bench.plan(), ElementsAre(Pair(3, 11)));
  EXPECT_EQ(bench.scheduler.stats().num_drafted_tokens, 6);
  EXPECT_EQ(bench.scheduler.stats().num_accepted_tokens, 3);
}

TEST(SchedulerDrafts, ARequestThatMayEndIsScheduledUntilItCertainlyDoes) {
  Bench bench(drafts_config(3, 4));
  bench.add(1, tokens_from(0, 5), 3);
  bench.runner.run_of = [](RowId) { return std::vector<TokenId>{7, 8, 9, 10}; };
  ASSERT_TRUE(bench.launch());
  ASSERT_TRUE(bench.launch());  // at least 2 outputs, at most 5
  ASSERT_TRUE(bench.launch());  // at least 3
  EXPECT_THAT(bench.plan(), ElementsAre(Pair(4, 9)));
  EXPECT_FALSE(bench.launch());
  bench.collect();
  bench.collect();
  ASSERT_EQ(bench.deltas.size(), 1U);
  EXPECT_EQ(bench.deltas[0].tokens, (Span32{0, 2})) << "max_tokens cuts the accepted tokens";
  EXPECT_EQ(bench.deltas[0].reason, FinishReason::kLength);
  bench.collect();
  EXPECT_THAT(bench.deltas, IsEmpty()) << "the request has ended";
}

// vllm#29759: a shorter row would take its step out of the graphs of equal rows.
TEST(SchedulerDrafts, ARowNearItsEndDraftsAsManyAsTheOthers) {
  Bench bench(drafts_config(3, 1));
  bench.add(1, tokens_from(0, 5), 2);
  bench.add(2, tokens_from(20, 5), 50);
  ASSERT_TRUE(bench.run_step());
  ASSERT_TRUE(bench.run_step());
  EXPECT_THAT(bench.plan(), ElementsAre(Pair(4, 5), Pair(4, 5)))
      << "one token is left of the first";
}

TEST(SchedulerDrafts, AStopIdEndsInsideARun) {
  Bench bench(drafts_config(3, 1));
  Request request = request_of(1, tokens_from(20, 5));
  request.params.min_tokens = 2;
  request.eos_token_ids = {2};
  request.stop_token_ids = {9};
  bench.add(request);
  bench.runner.run_of = [](RowId) { return std::vector<TokenId>{2, 9, 2, 2}; };
  ASSERT_TRUE(bench.run_step());
  EXPECT_EQ(bench.deltas[0].reason, FinishReason::kNone) << "min_tokens";
  ASSERT_TRUE(bench.launch());
  bench.pending[0].rows[0].hidden = {6, 4};
  bench.collect();
  EXPECT_EQ(bench.deltas[0].tokens, (Span32{0, 2})) << "the second output does not end the request";
  EXPECT_EQ(bench.deltas[0].hidden, (Span32{6, 2}));
  EXPECT_EQ(bench.deltas[0].reason, FinishReason::kStop);
  EXPECT_EQ(bench.deltas[0].stop_token_id, 9);
}

TEST(SchedulerDrafts, AFailureBehindTokens) {
  for (const bool eos_before : {false, true}) {
    Bench bench(drafts_config(2, 1));
    Request request = request_of(1, tokens_from(0, 5));
    request.eos_token_ids = {2};
    bench.add(request);
    ASSERT_TRUE(bench.run_step());
    ASSERT_TRUE(bench.launch());
    RowOutput& row = bench.pending[0].rows[0];
    row.tokens = {0, 1};
    row.num_rejected = 1;
    row.failure = RowFailure::kBadLogits;
    bench.pending[0].token_ids = {eos_before ? 2 : 3};
    bench.collect();
    EXPECT_EQ(bench.deltas[0].tokens.count, 1);
    EXPECT_EQ(bench.deltas[0].reason, eos_before ? FinishReason::kStop : FinishReason::kError);
    EXPECT_EQ(bench.deltas[0].failure, eos_before ? RowFailure::kNone : RowFailure::kBadLogits);
  }
}

// Blocks of 4. A query sees its own token and the 4 before it.
TEST(SchedulerDrafts, AWindowKeepsWhatARejectionNeeds) {
  SchedulerConfig config = drafts_config(3, 2);
  config.kv.groups[0].kind = KvKind::kSlidingWindow;
  config.kv.groups[0].window = 5;
  Bench bench(config);
  bench.add(1, tokens_from(0, 8));
  const auto num_dropped = [&] {
    const std::vector<BlockId> table = bench.scheduler.block_table(1, 0);
    return std::count(table.begin(), table.end(), kNullBlock);
  };
  bench.runner.run_of = [](RowId) { return std::vector<TokenId>{7, 7, 7, 7}; };
  ASSERT_TRUE(bench.run_step());
  ASSERT_TRUE(bench.launch());
  EXPECT_THAT(bench.plan(), ElementsAre(Pair(4, 8)));
  EXPECT_EQ(num_dropped(), 1) << "query 8 sees tokens from position 4 on";
  ASSERT_TRUE(bench.launch());
  EXPECT_THAT(bench.plan(), ElementsAre(Pair(4, 12)));
  EXPECT_EQ(num_dropped(), 1) << "the next query may be 9";
  bench.collect();
  ASSERT_TRUE(bench.launch());
  EXPECT_THAT(bench.plan(), ElementsAre(Pair(4, 16)));
  EXPECT_EQ(num_dropped(), 2) << "the next query is at least 13 and sees positions from 9 on";
}

// The prefix hit of a new request whose prompt begins with these tokens.
int32_t hit_of(Bench& bench, uint64_t id, std::vector<TokenId> prefix) {
  prefix.push_back(99);
  bench.add(id, std::move(prefix));
  EXPECT_TRUE(bench.launch());
  EXPECT_EQ(bench.step.new_rows.size(), 1U);
  const int32_t hit = bench.step.new_rows.front().num_computed_tokens;
  bench.scheduler.abort_request(id);
  return hit;
}

TEST(SchedulerDrafts, OnlyAcceptedTokensAreNamed) {
  const std::vector<TokenId> two_blocks{0, 1, 2, 3, 4, 5, 6, 7};
  for (const bool accepted : {false, true}) {
    Bench bench(drafts_config(3, 2));
    bench.add(1, tokens_from(0, 6));
    bench.runner.token = 6;
    ASSERT_TRUE(bench.run_step());
    bench.runner.run_of = [&](RowId) {
      return accepted ? std::vector<TokenId>{7, 8, 9} : std::vector<TokenId>{7};
    };
    ASSERT_TRUE(bench.launch());  // tokens 6 to 9; accepting 7 fills the second block
    EXPECT_THAT(bench.plan(), ElementsAre(Pair(4, 6)));
    bench.collect();
    EXPECT_EQ(hit_of(bench, 2, two_blocks), accepted ? 8 : 4);
  }
}

TEST(SchedulerDrafts, OnlyTheRightResultIsTaken) {
  const auto collect_with = [](void (*change)(RowOutput&)) {
    Bench bench(drafts_config(2, 1));
    bench.add(1, tokens_from(0, 5));
    bench.run_step();
    bench.launch();
    RowOutput stale = bench.pending[0].rows[0];
    stale.generation = 0;
    stale.tokens.count = 3;
    change(bench.pending[0].rows[0]);
    bench.pending[0].rows.insert(bench.pending[0].rows.begin(), stale);
    bench.collect();
    return bench.deltas.size();
  };
  EXPECT_EQ(collect_with([](RowOutput&) {}), 1U);
  const ScopedCheckThrows throws;
  EXPECT_THROW(collect_with([](RowOutput& row) { row.kind = RowResult::kPooled; }), CheckFailure);
  EXPECT_THROW(collect_with([](RowOutput& row) { row.kind = RowResult::kNothing; }), CheckFailure);
  EXPECT_THROW(collect_with([](RowOutput& row) { row.num_rejected = 1; }), CheckFailure);
  EXPECT_THROW(collect_with([](RowOutput& row) {
                 row.tokens.count = 0;
                 row.num_rejected = 3;
               }),
               CheckFailure)
      << "the row was not withheld";
}

TEST(SchedulerDrafts, AWithheldRowComputesItsDraftsAgain) {
  Bench bench(drafts_config(2, 2));
  Request request = request_of(1, tokens_from(0, 5));
  request.grammar = 3;
  bench.add(request);
  ASSERT_TRUE(bench.launch());
  EXPECT_TRUE(bench.step.scheduled[0].wants_drafts);
  bench.pending[0].draft_token_ids = {4, 5};
  bench.pending[0].rows[0].drafts = {0, 2};
  ASSERT_TRUE(bench.launch());
  EXPECT_THAT(bench.plan(), ElementsAre(Pair(3, 5)));
  bench.collect();
  EXPECT_EQ(bench.deltas[0].drafts, (Span32{0, 2}));
  bench.scheduler.withhold(RowId{0});
  bench.scheduler.check_invariants();
  RowOutput& row = bench.pending[0].rows[0];
  row.tokens.count = 0;
  row.num_rejected = 3;
  bench.collect();
  EXPECT_THAT(bench.deltas, IsEmpty());
  EXPECT_FALSE(bench.launch()) << "held";
  bench.scheduler.resume(1);
  ASSERT_TRUE(bench.scheduler.schedule(bench.step));
  EXPECT_THAT(bench.plan(), ElementsAre(Pair(3, 5)));
  EXPECT_THAT(bench.step.grammar_rows, ElementsAre(RowId{0}));
}

TEST(SchedulerDrafts, TheBudgetCutsThem) {
  SchedulerConfig config = drafts_config(3, 1);
  config.max_num_batched_tokens = 11;
  Bench bench(config);
  for (uint64_t id = 1; id <= 5; ++id) {
    bench.add(id, {static_cast<TokenId>(id), 0});
  }
  ASSERT_TRUE(bench.run_step());
  ASSERT_TRUE(bench.run_step());
  EXPECT_THAT(bench.plan(), ElementsAre(Pair(4, 2), Pair(4, 2), Pair(3, 2)));
}

TEST(SchedulerDrafts, NobodyGivesUpBlocksForThem) {
  SchedulerConfig config = drafts_config(3, 1);
  config.kv.num_blocks = 5;  // four of 4 tokens
  Bench bench(config);
  bench.add(1, tokens_from(0, 7), 2);
  bench.add(2, tokens_from(10, 7), 2);
  ASSERT_TRUE(bench.run_step());
  ASSERT_TRUE(bench.run_step());
  EXPECT_THAT(bench.plan(), ElementsAre(Pair(1, 7), Pair(1, 7)));
  EXPECT_EQ(bench.scheduler.stats().num_preemptions, 0);
}

// Where a row's tokens depend on how many of them were drafts, neither the budget nor other rows' blocks decide that: a row
// waits for a step that has room, and others give up blocks.
TEST(SchedulerDrafts, RowsHaveAllOfThemOrWait) {
  SchedulerConfig config = drafts_config(3, 1);
  config.whole_drafts = true;
  config.max_num_batched_tokens = 11;
  Bench bench(config);
  for (uint64_t id = 1; id <= 5; ++id) {
    bench.add(id, {static_cast<TokenId>(id), 0}, 9);
  }
  bench.runner.run_of = [](RowId) { return std::vector<TokenId>{7, 8}; };
  ASSERT_TRUE(bench.run_step());
  ASSERT_TRUE(bench.run_step());
  EXPECT_THAT(bench.plan(), ElementsAre(Pair(4, 2), Pair(4, 2)));
  int32_t num_ended = 0;
  for (int32_t i = 0; i < 100 && bench.run_step(); ++i) {
    for (const ScheduledRow& row : bench.step.scheduled) {
      EXPECT_TRUE(row.num_drafts == 3 || row.num_computed_tokens < 2);
    }
    for (const RequestDelta& delta : bench.deltas) {
      num_ended += delta.reason == FinishReason::kLength ? 1 : 0;
    }
  }
  EXPECT_EQ(num_ended, 5) << "the last ones, too";
}

TEST(SchedulerDrafts, RowsThatHaveAllOfThemPreemptOthers) {
  SchedulerConfig config = drafts_config(3, 1);
  config.whole_drafts = true;
  config.kv.num_blocks = 5;  // four of 4 tokens
  Bench bench(config);
  bench.add(1, tokens_from(0, 7), 2);
  bench.add(2, tokens_from(10, 7), 2);
  ASSERT_TRUE(bench.run_step());
  ASSERT_TRUE(bench.run_step());
  EXPECT_THAT(bench.plan(), ElementsAre(Pair(4, 7)));
  EXPECT_EQ(bench.scheduler.stats().num_preemptions, 1);
}

// The prompt and all outputs but the last take 16 tokens, four blocks. The drafts of two steps in flight may need 4
// tokens beyond that.
TEST(SchedulerDrafts, ARequestNeedsRoomForThoseBehindItsEnd) {
  SchedulerConfig config = drafts_config(2, 2);
  config.kv.num_blocks = 5;
  EXPECT_FALSE(Scheduler(config).check(10, 7));
  EXPECT_TRUE(Scheduler(config).check(10, 3));
  config.kv.num_blocks = 6;
  EXPECT_TRUE(Scheduler(config).check(10, 7));
  config.kv.num_blocks = 5;
  config.num_drafts = 0;
  EXPECT_TRUE(Scheduler(config).check(10, 7));
}

TEST(SchedulerDrafts, APreemptedRequestWaitsForItsRun) {
  SchedulerConfig config = drafts_config(2, 2);
  config.kv.num_blocks = 7;  // six of 4 tokens
  Bench bench(config);
  bench.add(1, tokens_from(0, 11), 8);
  bench.add(2, tokens_from(20, 9), 8);
  bench.runner.run_of = [](RowId) { return std::vector<TokenId>{7, 8}; };
  int32_t num_outputs = 0;  // of the second request
  const auto collect = [&] {
    bench.collect();
    for (const RequestDelta& delta : bench.deltas) {
      num_outputs += delta.id == 2 ? delta.tokens.count : 0;
    }
  };
  ASSERT_TRUE(bench.launch());
  while (bench.step.preempted_rows.empty()) {
    if (bench.pending.size() == 2) {
      collect();
    }
    ASSERT_TRUE(bench.launch());
  }
  EXPECT_THAT(bench.step.preempted_rows, ElementsAre(RowId{1}));
  const int32_t num_before = num_outputs;
  for (bool admitted = false; !admitted;) {
    ASSERT_FALSE(bench.pending.empty());
    collect();
    admitted = bench.launch() && !bench.step.new_rows.empty();
  }
  EXPECT_EQ(num_outputs, num_before + 2) << "a run was in flight";
  EXPECT_EQ(bench.step.new_rows[0].prefill_len, 9 + num_outputs);
}

// Runs a step in which the device proposes `draft` three times.
void step_with_proposal(Bench& bench, TokenId draft) {
  ASSERT_TRUE(bench.launch());
  ModelRunnerOutput& out = bench.pending[0];
  for (RowOutput& row : out.rows) {
    if (bench.step.num_proposals == 0) {
      break;
    }
    row.drafts = {static_cast<int32_t>(out.draft_token_ids.size()), 3};
    out.draft_token_ids.insert(out.draft_token_ids.end(), 3, draft);
  }
  bench.collect();
}

TEST(SchedulerDrafts, ARowDraftsWhereItPays) {
  SchedulerConfig config = drafts_config(3, 1);
  config.draft_cost = 0.3;
  Bench bench(config);
  bench.add(1, tokens_from(0, 5));
  bench.runner.run_of = [](RowId) { return std::vector<TokenId>{7, 7, 7, 7}; };
  step_with_proposal(bench, 7);
  step_with_proposal(bench, 7);
  EXPECT_THAT(bench.step.scheduled, ElementsAre(ScheduledRow{RowId{0}, 1, 5, 0, 1, true}))
      << "nothing is known of its drafts yet, but they are wanted";
  int32_t num_steps = 0;
  while (bench.step.scheduled[0].num_drafts < 3 && num_steps++ < 20) {
    step_with_proposal(bench, 7);
  }
  EXPECT_LT(num_steps, 20) << "all were right";
  const SchedulerStats right = bench.scheduler.stats();
  EXPECT_EQ(right.num_accepted_tokens, right.num_drafted_tokens);
  EXPECT_EQ(right.num_accepted_at[0], right.num_drafts);
  EXPECT_GT(right.num_accepted_at[0], right.num_accepted_at[2]);
  bench.runner.run_of = [](RowId) { return std::vector<TokenId>{8}; };
  num_steps = 0;
  while (bench.step.scheduled[0].num_drafts > 0 && num_steps++ < 20) {
    step_with_proposal(bench, 7);
  }
  EXPECT_LT(num_steps, 20) << "all were wrong";
  EXPECT_GT(bench.scheduler.stats().num_undrafted, right.num_undrafted);
}

// On a GPU: what pays for a row pays for all, or for none.
TEST(SchedulerDrafts, RowsOfAStepDraftEquallyMany) {
  SchedulerConfig config = drafts_config(3, 1);
  config.draft_knee = 180;
  Bench bench(config);
  bench.add(1, tokens_from(0, 5), 200);
  bench.add(2, tokens_from(20, 5), 200);
  bench.runner.run_of = [](RowId row) {
    return row == RowId{0} ? std::vector<TokenId>{7, 7, 7, 7} : std::vector<TokenId>{8};
  };
  for (int32_t i = 0; i < 20; ++i) {
    step_with_proposal(bench, 7);
    EXPECT_EQ(bench.step.scheduled[0].num_drafts, bench.step.scheduled[1].num_drafts);
  }
  EXPECT_EQ(bench.step.scheduled[0].num_drafts, 3);
  bench.runner.run_of = [](RowId) { return std::vector<TokenId>{8}; };
  for (int32_t i = 0; i < 40; ++i) {
    step_with_proposal(bench, 7);
  }
  ASSERT_EQ(bench.step.scheduled.size(), 2U);
  EXPECT_EQ(bench.step.scheduled[0].num_drafts, 0);
  EXPECT_EQ(bench.step.scheduled[1].num_drafts, 0);
  EXPECT_GT(bench.scheduler.stats().num_undrafted, 2);
}

// A drafting model makes as many drafts as would have paid, and a step verifies no more than the one before made.
TEST(SchedulerDrafts, AModelMakesAsManyAsPay) {
  SchedulerConfig config = small_config(256, 4);
  config.num_drafts = 3;
  config.max_concurrent_steps = 1;
  config.max_model_len = 1000;
  config.draft_knee = 180;
  config.draft_lookahead = 3;
  config.draft_forward = 0.05;
  Bench bench(config);
  bench.add(1, tokens_from(0, 5), 600);
  bench.runner.run_of = [](RowId) { return std::vector<TokenId>{7, 7, 7, 7}; };
  int32_t made = 3;
  for (int32_t i = 0; i < 30; ++i) {
    step_with_proposal(bench, 7);
    EXPECT_LE(bench.step.scheduled[0].num_drafts, made);
    made = bench.step.num_proposals;
    EXPECT_GE(made, 1);
  }
  EXPECT_EQ(bench.step.scheduled[0].num_drafts, 3);
  EXPECT_EQ(made, 3);
  bench.runner.run_of = [](RowId) { return std::vector<TokenId>{8}; };
  for (int32_t i = 0; i < 40; ++i) {
    step_with_proposal(bench, 7);
  }
  EXPECT_EQ(bench.step.scheduled[0].num_drafts, 0);
  EXPECT_EQ(bench.step.num_proposals, 0) << "enough is known of the row";
  int32_t num_tried = 0;
  for (int32_t i = 0; i < 128; ++i) {
    step_with_proposal(bench, 7);
    EXPECT_EQ(bench.step.scheduled[0].num_drafts, 0);
    EXPECT_LE(bench.step.num_proposals, 1);
    num_tried += bench.step.num_proposals;
  }
  EXPECT_EQ(num_tried, 8) << "now and then, to find out";
  bench.runner.run_of = [](RowId) { return std::vector<TokenId>{7, 7, 7, 7}; };
  int32_t num_steps = 0;
  while (bench.step.scheduled[0].num_drafts == 0 && num_steps++ < 140) {
    step_with_proposal(bench, 7);
  }
  EXPECT_LE(num_steps, 128) << "drafts are right again";
}

// Of a prompt a drafting model needs keys and values, and nothing is known of the row's drafts yet.
TEST(SchedulerDrafts, AModelDraftsForNewRowsAlthoughOthersWereWrong) {
  SchedulerConfig config = drafts_config(3, 1);
  config.draft_knee = 180;
  config.draft_lookahead = 3;
  config.draft_forward = 0.05;
  Bench bench(config);
  bench.runner.run_of = [](RowId) { return std::vector<TokenId>{8}; };
  for (uint64_t id = 1; id <= 2; ++id) {
    bench.add(id, tokens_from(0, 5), 100);
    for (int32_t i = 0; i < 18; ++i) {
      step_with_proposal(bench, 7);
      EXPECT_EQ(bench.step.num_proposals, i < 17 ? 1 : 0) << id << ", " << i;
    }
  }
}

// Where every token takes its time, no draft pays.
TEST(SchedulerDrafts, AModelMakesNoneWhereNonePays) {
  SchedulerConfig config = drafts_config(3, 1);
  config.draft_knee = 0.5;
  config.draft_lookahead = 3;
  config.draft_forward = 0.05;
  Bench bench(config);
  bench.add(1, tokens_from(0, 5), 40);
  bench.runner.run_of = [](RowId) { return std::vector<TokenId>{7}; };
  for (int32_t i = 0; i < 10; ++i) {
    ASSERT_TRUE(bench.launch());
    EXPECT_EQ(bench.step.num_proposals, 0);
    EXPECT_FALSE(bench.step.scheduled[0].wants_drafts);
    EXPECT_EQ(bench.step.scheduled[0].num_drafts, 0);
    bench.collect();
  }
}

// A proposer with keys and values of its own writes behind the step's tokens, whatever was accepted.
TEST(SchedulerDrafts, BlocksForWhatAProposerWrites) {
  SchedulerConfig config = drafts_config(3, 2);
  config.draft_lookahead = 3;
  Bench bench(config);
  bench.add(1, tokens_from(0, 14), 40);
  bench.add(2, tokens_from(20, 3), 40);
  bench.runner.run_of = [](RowId) { return std::vector<TokenId>{7, 8, 9, 10}; };
  int32_t num_checked = 0;
  while (bench.launch()) {
    for (const RequestStatus& request : bench.scheduler.list_requests()) {
      for (const ScheduledRow& row : bench.step.scheduled) {
        if (row.row == request.row) {
          EXPECT_GE(request.num_blocks * config.kv.groups[0].block_size,
                    row.num_computed_tokens + row.num_tokens + 3);
          ++num_checked;
        }
      }
    }
    if (bench.pending.size() > 1) {
      bench.collect();
    }
    bench.scheduler.check_invariants();
  }
  EXPECT_GT(num_checked, 10);
}

TEST(SchedulerDrafts, ARequestWithoutThem) {
  Bench bench(drafts_config(3, 1));
  Request request = request_of(1, tokens_from(0, 5));
  request.may_draft = false;
  bench.add(request);
  bench.add(2, tokens_from(20, 5));
  ASSERT_TRUE(bench.run_step());
  ASSERT_TRUE(bench.run_step());
  EXPECT_THAT(bench.plan(), ElementsAre(Pair(1, 5), Pair(4, 5)));
}

}  // namespace
}  // namespace warprow
