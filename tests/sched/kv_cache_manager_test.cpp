// SPDX-License-Identifier: Apache-2.0
#include "sched/kv_cache_manager.h"

#include "base/check.h"
#include "tests/sched/scheduler_rig.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::ElementsAre;
using testing::tokens_from;

constexpr RowId kRow{0};

KvGroupSpec full_group(int32_t block_size) {
  KvGroupSpec group;
  group.block_size = block_size;
  return group;
}

KvGroupSpec window_group(int32_t block_size, int32_t window) {
  KvGroupSpec group = full_group(block_size);
  group.kind = KvKind::kSlidingWindow;
  group.window = window;
  return group;
}

struct Cache {
  Cache(std::vector<KvGroupSpec> groups,
        int32_t num_blocks,
        int32_t max_step_tokens = 1024,
        int32_t lookahead = 0)
      : manager({std::move(groups), num_blocks},
                {.max_step_tokens = max_step_tokens,
                 .max_row_len = 1024,
                 .token_pages = all_token_pages(1024, 16, 1024),
                 .lookahead = lookahead}) {}

  // A request that computes all its tokens in one step.
  bool enter(RequestKv& kv, const std::vector<TokenId>& tokens) {
    manager.init(kv, {}, static_cast<int32_t>(tokens.size()));
    const auto num_tokens = static_cast<int32_t>(tokens.size());
    const int32_t hit = manager.find_prefix(kv, tokens, num_tokens - 1);
    out.clear();
    if (!manager.admit(kv, {kRow, hit, num_tokens, num_tokens}, out)) {
      return false;
    }
    manager.cache_full_blocks(kv, tokens, num_tokens);
    return true;
  }

  // The manager exposes its pool as const; the tests evict blocks.
  BlockPool& pool() { return const_cast<BlockPool&>(manager.pool()); }

  KvCacheManager manager;
  SchedulerOutput out;
};

// A window of 4 with 7 tokens computed: tokens 0 to 3, two blocks of 2, can be freed.
TEST(KvCacheManager, AWindowLetsGo) {
  Cache cache({window_group(2, 4)}, 16);
  RequestKv kv;
  ASSERT_TRUE(cache.enter(kv, tokens_from(0, 7)));
  EXPECT_EQ(kv.window_at, 5);
  cache.manager.drop_outside_windows(kv, 7, 0);
  EXPECT_THAT(kv.tables[0].blocks, ElementsAre(kNullBlock, kNullBlock, BlockId{3}, BlockId{4}));
  EXPECT_EQ(kv.window_at, 9);
  EXPECT_EQ(cache.manager.pool().num_free(), 13);
  // The freed blocks stay cached until they are allocated again, in reverse order.
  EXPECT_EQ(cache.manager.pool().free_order()[11], BlockId{2});
  EXPECT_EQ(cache.manager.pool().free_order()[12], BlockId{1});
  cache.manager.release(kv, 0);
  EXPECT_EQ(cache.manager.pool().num_free(), 15);
}

// The largest number of blocks that admission reserves for a window group.
TEST(KvCacheManager, BlocksARequestEverNeeds) {
  Cache cache({full_group(2), window_group(2, 4)}, 16, 16);
  EXPECT_EQ(cache.manager.max_blocks_for(7), 4 + 4);
  EXPECT_EQ(cache.manager.max_blocks_for(1000), 500 + 11);
}

// The full group hits 6 blocks. The window group (W = 33: 2 blocks) has only blocks 2 and 3 cached. The common hit is
// 64 tokens, and the window's table is [null, null, 2, 3].
TEST(KvCacheManager, HybridHitIsAFixedPoint) {
  Cache cache({full_group(16), window_group(16, 33)}, 40);
  const std::vector<TokenId> tokens = tokens_from(0, 97);
  RequestKv first;
  ASSERT_TRUE(cache.enter(first, tokens));  // 7 blocks each, 6 of them full
  const std::vector<BlockId> full = first.tables[0].blocks;
  const std::vector<BlockId> window = first.tables[1].blocks;
  cache.manager.release(first, 0);

  // Evicts the window group's blocks 0, 1, 4 and 5 by allocating every free block.
  BlockPool& pool = cache.pool();
  std::vector<BlockId> kept(full.begin(), full.begin() + 6);
  kept.insert(kept.end(), {window[2], window[3]});
  for (const BlockId block : kept) {
    pool.touch(block);
  }
  std::vector<BlockId> taken;
  while (pool.num_free() > 0) {
    taken.push_back(pool.take());
  }
  for (const BlockId block : taken) {
    pool.release(block, 0);
  }

  RequestKv second;
  cache.manager.init(second, {}, 200);
  const std::vector<TokenId> longer = tokens_from(0, 150);
  EXPECT_EQ(cache.manager.find_prefix(second, longer, 149), 64);
  cache.out.clear();
  ASSERT_TRUE(cache.manager.admit(second, {kRow, 64, 70, 150}, cache.out));
  EXPECT_EQ(second.tables[0].blocks[3], full[3]);
  EXPECT_THAT(
      std::vector<BlockId>(second.tables[1].blocks.begin(), second.tables[1].blocks.begin() + 4),
      ElementsAre(kNullBlock, kNullBlock, window[2], window[3]));
  EXPECT_EQ(second.tables[1].blocks.size(), 5U);
  // The whole table is sent to the runner, including null blocks.
  ASSERT_EQ(cache.out.block_appends.size(), 2U);
  EXPECT_EQ(cache.out.block_appends[1].start, 0);
  EXPECT_EQ(cache.out.block_appends[1].blocks.count, 5);
}

TEST(KvCacheManager, AWindowHitMayReachBackToTheStart) {
  Cache cache({window_group(4, 100)}, 40);
  RequestKv first;
  ASSERT_TRUE(cache.enter(first, tokens_from(0, 9)));
  RequestKv second;
  cache.manager.init(second, {}, 50);
  EXPECT_EQ(cache.manager.find_prefix(second, tokens_from(0, 50), 49),
            8);  // 2 blocks, although the window would need 25
}

TEST(KvCacheManager, HitsEndOnEveryGroupsBoundary) {
  Cache cache({full_group(4), full_group(6)}, 60);
  RequestKv first;
  const std::vector<TokenId> tokens = tokens_from(0, 40);
  ASSERT_TRUE(cache.enter(first, tokens));
  RequestKv second;
  cache.manager.init(second, {}, 40);
  EXPECT_EQ(cache.manager.find_prefix(second, tokens, 39), 36);
  EXPECT_EQ(cache.manager.find_prefix(second, tokens, 35), 24);
  cache.out.clear();
  ASSERT_TRUE(cache.manager.admit(second, {kRow, 24, 40, 40}, cache.out));
  EXPECT_EQ(second.tables[0].blocks.size(), 10U);
  EXPECT_EQ(second.tables[1].blocks.size(), 7U);
  EXPECT_EQ(second.capacity, 40);
  EXPECT_EQ(second.cache_at, 28);
}

// A cached block without an owner counts as free only until the hit takes it.
TEST(KvCacheManager, AdmissionCountsEvictableHits) {
  Cache cache({full_group(4)}, 5);  // 4 blocks
  RequestKv first;
  ASSERT_TRUE(cache.enter(first, tokens_from(0, 9)));
  cache.manager.release(first, 0);
  RequestKv second;
  EXPECT_FALSE(cache.enter(second, tokens_from(0, 17)));  // needs 2 cached and 3 new blocks
  EXPECT_EQ(cache.manager.pool().num_free(), 4);
  RequestKv third;
  EXPECT_TRUE(cache.enter(third, tokens_from(0, 16)));  // needs 2 cached and 2 new blocks
  EXPECT_EQ(cache.manager.pool().num_free(), 0);
}

TEST(KvCacheManager, GrowIsAllOrNothing) {
  Cache cache({full_group(4), full_group(4)}, 6);
  RequestKv kv;
  cache.manager.init(kv, {}, 20);
  ASSERT_TRUE(cache.manager.admit(kv, {kRow, 0, 4, 4}, cache.out));
  cache.out.clear();
  EXPECT_TRUE(cache.manager.grow(kv, 5, kRow, cache.out));
  EXPECT_THAT(cache.out.block_appends,
              ElementsAre(BlockAppend{kRow, 0, 1, {0, 1}}, BlockAppend{kRow, 1, 1, {1, 1}}));
  cache.out.clear();
  EXPECT_FALSE(cache.manager.grow(kv, 9, kRow, cache.out));  // one block is free, two are needed
  EXPECT_TRUE(cache.out.block_appends.empty());
  EXPECT_EQ(kv.capacity, 8);
  EXPECT_EQ(cache.manager.pool().num_free(), 1);
}

TEST(KvCacheManager, WithoutPrefixCachingNothingIsNamed) {
  KvCacheManager manager({{full_group(4)}, 8},
                         {1024, 1024, all_token_pages(1024, 16, 1024), false, false});
  RequestKv kv;
  SchedulerOutput out;
  manager.init(kv, {}, 20);
  const std::vector<TokenId> tokens = tokens_from(0, 9);
  EXPECT_EQ(manager.find_prefix(kv, tokens, 8), 0);
  ASSERT_TRUE(manager.admit(kv, {kRow, 0, 9, 9}, out));
  EXPECT_EQ(kv.cache_at, RequestKv::kNever);
}

// The planner refuses this kind, so such a group is a bug.
TEST(KvCacheManager, AKindWithoutAPolicyIsOurMistake) {
  const ScopedCheckThrows throws;
  KvGroupSpec group = full_group(16);
  group.kind = KvKind::kCross;
  EXPECT_THROW(Cache({full_group(16), group}, 16), CheckFailure);
}

KvGroupSpec state_group(int32_t unit, int32_t pages) {
  KvGroupSpec group = full_group(unit);
  group.kind = KvKind::kState;
  group.state_pages = pages;
  return group;
}

// The cells of a row that the step gets for a group; empty if it gets none.
std::vector<int32_t> cells_of(const SchedulerOutput& out, int32_t group) {
  std::vector<int32_t> cells;
  for (const BlockAppend& append : out.block_appends) {
    for (int32_t i = 0; append.group == group && i < append.blocks.count; ++i) {
      cells.push_back(index_of(out.block_ids[static_cast<size_t>(append.blocks.begin + i)]));
    }
  }
  return cells;
}

// A prompt of 40 tokens computed at once leaves a checkpoint behind 32; its blocks are free when the step is planned, and
// the row's cells forget them with the next step. A request with the same first 33 tokens starts from the checkpoint.
TEST(KvCacheManager, ACheckpointOfAState) {
  Cache cache({full_group(16), state_group(16, 2)}, 32);
  const std::vector<TokenId> tokens = tokens_from(0, 40);
  RequestKv first;
  ASSERT_TRUE(cache.enter(first, tokens));
  EXPECT_THAT(cells_of(cache.out, 1), ElementsAre(4, 5, 6, 7, 0, 0));
  EXPECT_EQ(first.capacity, 40);  // the next step changes the cells, although the blocks have room
  cache.manager.return_loans(first, 1);
  EXPECT_EQ(cache.manager.pool().num_free(), 31 - 3 - 2);
  cache.out.clear();
  ASSERT_TRUE(cache.manager.grow(first, 41, kRow, cache.out));
  EXPECT_THAT(cells_of(cache.out, 1), ElementsAre(4, 5, 0, 0, 0, 0));
  EXPECT_EQ(first.capacity, 48);
  cache.out.clear();
  ASSERT_TRUE(cache.manager.grow(first, 49, kRow, cache.out));
  EXPECT_TRUE(cells_of(cache.out, 1).empty());

  RequestKv second;
  std::vector<TokenId> other = tokens_from(0, 33);
  other.push_back(77);
  ASSERT_TRUE(cache.enter(second, other));
  EXPECT_THAT(cells_of(cache.out, 1), ElementsAre(10, 11, 0, 0, 6, 7));
  EXPECT_EQ(cache.manager.pool().num_refs(BlockId{6}), 1);
  cache.manager.return_loans(second, 2);
  EXPECT_EQ(cache.manager.pool().num_refs(BlockId{6}), 0);
  EXPECT_EQ(second.tables[1].blocks[4], kNullBlock);
}

// Room for drafts behind a step's tokens: checkpoints lie where they do without it.
TEST(KvCacheManager, RoomForDraftsDoesNotMoveACheckpoint) {
  constexpr int32_t kLookahead = 3;
  Cache cache({full_group(16), state_group(16, 1)}, 32, 1024, kLookahead);
  const std::vector<TokenId> tokens = tokens_from(0, 47);
  RequestKv kv;
  cache.manager.init(kv, {}, 47 + kLookahead);
  ASSERT_EQ(cache.manager.find_prefix(kv, tokens, 46), 0);
  ASSERT_TRUE(cache.manager.admit(kv, {kRow, 0, 31, 47}, cache.out));
  EXPECT_EQ(kv.checkpoint_at, 16);  // not 32
  cache.manager.return_loans(kv, 1);
  cache.out.clear();
  ASSERT_TRUE(cache.manager.grow(kv, 47, kRow, cache.out));
  EXPECT_EQ(kv.checkpoint_at, 32);  // not 48
  EXPECT_FALSE(cells_of(cache.out, 1).empty());
  cache.manager.return_loans(kv, 2);
  cache.out.clear();
  ASSERT_TRUE(cache.manager.grow(kv, 48, kRow, cache.out));
  const std::vector<int32_t> cells = cells_of(cache.out, 1);  // forget the checkpoint
  ASSERT_EQ(cells.size(), 3);
  EXPECT_EQ(cells[1], 0);
  cache.manager.cache_full_blocks(kv, tokens, 47);
  RequestKv again;
  cache.manager.init(again, {}, 47 + kLookahead);
  EXPECT_EQ(cache.manager.find_prefix(again, tokens, 46), 32);
}

// A chunk that starts at the prompt's last block end leaves the state that it starts from and writes other pages.
TEST(KvCacheManager, AStateThatBecomesACheckpoint) {
  Cache cache({full_group(16), state_group(16, 1)}, 32);
  const std::vector<TokenId> tokens = tokens_from(0, 20);
  RequestKv kv;
  cache.manager.init(kv, {}, 20);
  ASSERT_EQ(cache.manager.find_prefix(kv, tokens, 19), 0);
  ASSERT_TRUE(cache.manager.admit(kv, {kRow, 0, 16, 20}, cache.out));
  const std::vector<int32_t> entered = cells_of(cache.out, 1);
  EXPECT_EQ(entered[1], 0);  // no block end lies between 0 and 16
  cache.manager.return_loans(kv, 1);
  cache.out.clear();
  ASSERT_TRUE(cache.manager.grow(kv, 20, kRow, cache.out));
  EXPECT_EQ(cells_of(cache.out, 1)[2], entered[0]);
  EXPECT_NE(cells_of(cache.out, 1)[0], entered[0]);
  cache.manager.return_loans(kv, 2);
  cache.manager.cache_full_blocks(kv, tokens, 20);
  RequestKv again;
  cache.manager.init(again, {}, 20);
  EXPECT_EQ(cache.manager.find_prefix(again, tokens, 19), 16);
}

// A checkpoint without one of its pages is none. Attention's hit is shorter for it.
TEST(KvCacheManager, AHitNeedsEveryPageOfAState) {
  Cache cache({full_group(16), state_group(16, 2)}, 32);
  const std::vector<TokenId> tokens = tokens_from(0, 40);
  RequestKv first;
  ASSERT_TRUE(cache.enter(first, tokens));
  cache.manager.return_loans(first, 1);
  cache.manager.release(first, 1);
  RequestKv second;
  cache.manager.init(second, {}, 40);
  EXPECT_EQ(cache.manager.find_prefix(second, tokens, 39), 32);
  BlockPool& pool = cache.pool();
  std::vector<BlockId> taken;
  while (pool.find(first.chains[0][1], CachedBlocks::page_key(1, 0)) != kNullBlock) {
    taken.push_back(pool.take());
  }
  EXPECT_NE(pool.find(first.chains[0][1], CachedBlocks::page_key(1, 1)), kNullBlock);
  EXPECT_EQ(cache.manager.find_prefix(second, tokens, 39), 0);
}

// A full group with blocks of 32 beside a window group with blocks of 16 (W = 17: one block). Hits end at multiples of
// 32.
TEST(KvCacheManager, HitsEndWhereBlocksOfEveryGroupEnd) {
  Cache cache({full_group(32), window_group(16, 17)}, 40);
  const std::vector<TokenId> tokens = tokens_from(0, 113);
  RequestKv first;
  ASSERT_TRUE(cache.enter(first, tokens));  // 3 full blocks of 32, 7 of 16
  EXPECT_EQ(first.tables[0].blocks.size(), 4U);
  EXPECT_EQ(first.tables[1].blocks.size(), 8U);
  RequestKv second;
  cache.manager.init(second, {}, 113);
  EXPECT_EQ(cache.manager.find_prefix(second, tokens, 112), 96);
  cache.out.clear();
  ASSERT_TRUE(cache.manager.admit(second, {kRow, 96, 113, 113}, cache.out));
  EXPECT_EQ(second.tables[0].blocks[2], first.tables[0].blocks[2]);
  EXPECT_EQ(second.tables[1].blocks[4], kNullBlock);
  EXPECT_EQ(second.tables[1].blocks[5], first.tables[1].blocks[5]);
  EXPECT_EQ(second.capacity, 128);
}

}  // namespace
}  // namespace warprow
