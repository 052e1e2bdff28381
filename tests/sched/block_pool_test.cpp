// SPDX-License-Identifier: Apache-2.0
#include "sched/block_pool.h"

#include "base/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::ElementsAre;

BlockHash name(uint64_t n) { return {n, ~n}; }
BlockId block(int32_t n) { return BlockId{n}; }

TEST(BlockPool, GivesOutInOrderAndNeverTheNullBlock) {
  BlockPool pool(4, false);
  EXPECT_EQ(pool.num_free(), 3);
  EXPECT_EQ(pool.take(), block(1));
  EXPECT_EQ(pool.take(), block(2));
  EXPECT_EQ(pool.take(), block(3));
  EXPECT_EQ(pool.num_free(), 0);
  const ScopedCheckThrows throws;
  EXPECT_THROW(pool.take(), CheckFailure);
}

// A request with the hashed blocks 1, 2, 3 and the partial block 4 is released in reverse order. The free list then is
// 4, the blocks that were free before, 3, 2, 1.
TEST(BlockPool, ReleaseOrder) {
  BlockPool pool(8, false);
  for (int32_t i = 1; i <= 4; ++i) {
    pool.take();
  }
  for (int32_t i = 1; i <= 3; ++i) {
    pool.set_hash(block(i), name(static_cast<uint64_t>(i)), 0);
  }
  for (int32_t i = 4; i >= 1; --i) {
    pool.release(block(i), 0);
  }
  EXPECT_THAT(pool.free_order(),
              ElementsAre(block(4), block(5), block(6), block(7), block(3), block(2), block(1)));
}

TEST(BlockPool, ForgetsAHashOnlyWhenTheBlockIsTaken) {
  BlockPool pool(3, false);
  EXPECT_EQ(pool.take(), block(1));
  pool.set_hash(block(1), name(9), 1);
  pool.release(block(1), 0);
  EXPECT_EQ(pool.find(name(9), 1), block(1));
  EXPECT_EQ(pool.find(name(9), 0), kNullBlock);  // another group
  EXPECT_EQ(pool.take(), block(2));
  EXPECT_EQ(pool.find(name(9), 1), block(1));
  EXPECT_EQ(pool.take(), block(1));
  EXPECT_EQ(pool.find(name(9), 1), kNullBlock);
  EXPECT_FALSE(pool.is_hashed(block(1)));
}

TEST(BlockPool, TouchTakesABlockOutOfTheFreeList) {
  BlockPool pool(4, false);
  pool.take();
  pool.set_hash(block(1), name(9), 0);
  pool.touch(block(1));
  EXPECT_EQ(pool.num_refs(block(1)), 2);
  pool.release(block(1), 0);
  pool.release(block(1), 0);
  EXPECT_EQ(pool.num_free(), 3);
  pool.touch(block(1));
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_THAT(pool.free_order(), ElementsAre(block(2), block(3)));
}

TEST(BlockPool, EqualContentInTwoBlocks) {
  BlockPool pool(4, false);
  pool.take();
  pool.take();
  pool.set_hash(block(1), name(9), 0);
  pool.set_hash(block(2), name(9), 0);
  pool.release(block(1), 0);
  pool.take();  // 3
  EXPECT_EQ(pool.take(), block(1));
  EXPECT_EQ(pool.find(name(9), 0), block(2));  // the other one is still cached
}

TEST(BlockPool, TheFenceHoldsBlocksBack) {
  BlockPool pool(5, true);
  for (int32_t i = 1; i <= 4; ++i) {
    pool.take();
  }
  pool.set_hash(block(3), name(3), 0);
  pool.set_hash(block(4), name(4), 0);
  pool.release(block(1), 0);  // no step in flight uses it
  EXPECT_EQ(pool.num_free(), 1);
  pool.release(block(2), 5);
  pool.release(block(3), 6);
  pool.release(block(4), 6);
  EXPECT_EQ(pool.num_fenced(), 3);
  pool.touch(block(4));  // a hit need not wait, because it only reads the block
  EXPECT_EQ(pool.num_fenced(), 2);
  pool.complete(4);
  EXPECT_EQ(pool.num_free(), 1);
  pool.complete(5);
  EXPECT_THAT(pool.free_order(), ElementsAre(block(2), block(1)));
  pool.complete(6);
  EXPECT_THAT(pool.free_order(), ElementsAre(block(2), block(1), block(3)));
  pool.release(block(4), 6);
  EXPECT_EQ(pool.num_free(), 4);
}

TEST(BlockPool, ReleasingTooOftenIsOurMistake) {
  BlockPool pool(3, false);
  pool.release(pool.take(), 0);
  const ScopedCheckThrows throws;
  EXPECT_THROW(pool.release(block(1), 0), CheckFailure);
}

}  // namespace
}  // namespace warprow
