// SPDX-License-Identifier: Apache-2.0
#include "sched/page_pool.h"

#include "kv/token_pages.h"
#include "tests/sched/scheduler_rig.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::SchedulerRig;
using testing::small_config;
using testing::tokens_from;

TEST(TokenPages, RoomForTheTokenSampledBehind) {
  const TokenPages pages{.page_size = 16, .num_pages = 5};
  EXPECT_EQ(pages.pages_for(1), 1);
  EXPECT_EQ(pages.pages_for(15), 1);
  EXPECT_EQ(pages.pages_for(16), 2);
  EXPECT_EQ(pages.max_tokens(), 64);
}

TEST(TokenPages, PoolsFollowTokensHeld) {
  // Rows of up to 1 M tokens that hold 4 M together, and a partial page for each of 1,024 rows.
  EXPECT_EQ(plan_token_pages(1024, 1024, 1 << 20, 4 << 20).num_pages, 1 + 4096 + 1024);
  // One row can always hold that length, regardless of the others.
  EXPECT_EQ(plan_token_pages(1024, 4, 1 << 20, 1000).num_pages, 1 + 1024 + 4);
  // Never more than all rows can use.
  EXPECT_EQ(plan_token_pages(1024, 8, 2048, 4 << 20), all_token_pages(1024, 8, 2048));
}

TEST(PagePool, PagesWaitForTheLastStepThatReadsThem) {
  PagePool pool(4);
  const std::vector<PageId> all = {pool.take(), pool.take(), pool.take()};
  EXPECT_EQ(all, (std::vector<PageId>{PageId{1}, PageId{2}, PageId{3}}));
  pool.release({all[0]}, 5);
  pool.release({all[1], all[2]}, 6);
  EXPECT_EQ(pool.num_free(), 0);
  EXPECT_EQ(pool.num_fenced(), 3);
  pool.complete(5);
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_EQ(pool.take(), PageId{1});
  pool.complete(7);
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_EQ(pool.num_fenced(), 0);
  pool.release({PageId{1}}, 7);  // all steps have completed, so it is free at once
  EXPECT_EQ(pool.num_free(), 3);
}

// A window of 4 tokens: each request holds three blocks and a growing number of tokens.
SchedulerConfig window_only(int32_t num_pages) {
  SchedulerConfig config = small_config(/*num_blocks=*/64, /*block_size=*/2);
  config.kv.groups[0].kind = KvKind::kSlidingWindow;
  config.kv.groups[0].window = 4;
  config.token_pages = {.page_size = 16, .num_pages = num_pages};
  return config;
}

// Two requests that end at 60 tokens need 8 pages together, and there are 5. Both must still get all their tokens.
TEST(SchedulerPages, ExhaustedPagesPreemptWhileBlocksAreFree) {
  for (const int32_t steps : {1, 2}) {
    SchedulerConfig config = window_only(1 + 5);
    config.max_concurrent_steps = steps;
    SchedulerRig rig(config);
    rig.add(1, tokens_from(0, 10), 50);
    rig.add(2, tokens_from(100, 10), 50);
    int32_t num_tokens = 0;
    int32_t most_blocks = 0;
    while (rig.scheduler.has_work() || !rig.pending.empty()) {
      if (rig.launch()) {
        most_blocks = std::max(most_blocks, rig.scheduler.stats().num_kv_blocks_used);
        continue;
      }
      ASSERT_FALSE(rig.pending.empty()) << "nothing can advance";
      rig.collect();
      for (const RequestDelta& delta : rig.deltas) {
        num_tokens += delta.tokens.count;
      }
    }
    EXPECT_EQ(num_tokens, 100);
    EXPECT_GE(rig.scheduler.stats().num_preemptions, 1);
    EXPECT_LT(most_blocks, 40) << "no shortage of blocks";
    EXPECT_EQ(rig.scheduler.pages().num_free(), 5);
  }
}

TEST(SchedulerPages, AdmissionWaitsForPages) {
  SchedulerRig rig(window_only(1 + 5));
  rig.add(1, tokens_from(0, 40), 2);
  rig.add(2, tokens_from(100, 40), 2);
  ASSERT_TRUE(rig.run_step());
  EXPECT_EQ(rig.scheduler.stats().num_running, 1) << "each prompt needs three of the five pages";
  ASSERT_EQ(rig.step.page_appends.size(), 1U);
  EXPECT_EQ(rig.step.page_appends[0], (PageAppend{rig.step.new_rows[0].row, 0, {0, 3}}));
  while (rig.run_step()) {
  }
  EXPECT_EQ(rig.scheduler.stats().num_preemptions, 0);
  EXPECT_EQ(rig.scheduler.pages().num_free(), 5);
}

// A row's pages are freed after the steps in flight. all_token_pages has spare pages for that, so the next request
// enters the row at once.
TEST(SchedulerPages, AFreedRowIsReusedWhileItsPagesWait) {
  SchedulerConfig config = small_config();
  config.max_num_seqs = 1;
  config.max_concurrent_steps = 2;
  SchedulerRig rig(config);
  rig.add(1, tokens_from(0, 500), 10);
  ASSERT_TRUE(rig.launch());
  rig.scheduler.abort_request(1);
  rig.add(2, tokens_from(0, 500), 10);
  ASSERT_TRUE(rig.launch());
  EXPECT_EQ(rig.step.new_rows.size(), 1U);
  EXPECT_GT(rig.scheduler.pages().num_fenced(), 0);
}

}  // namespace
}  // namespace warprow
