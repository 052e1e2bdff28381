// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_spec.h"

#include "kv/kv_math.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

KvGroupSpec group_of(int32_t num_layers, int32_t num_kv_heads, int32_t head_dim) {
  KvGroupSpec group;
  group.num_layers = num_layers;
  group.num_kv_heads = num_kv_heads;
  group.head_dim_k = group.head_dim_v = head_dim;
  return group;
}

TEST(KvSpec, SmolLm2BlockBytes) {
  const KvCacheSpec spec{{group_of(30, 3, 64)}, 0};
  EXPECT_EQ(spec.block_bytes(), 368'640);
  EXPECT_EQ(num_blocks_in(24LL << 20, spec), 68);
}

TEST(KvSpec, Qwen3SmallBlockBytes) {
  const KvCacheSpec spec{{group_of(28, 8, 128)}, 0};
  EXPECT_EQ(spec.block_bytes(), 1'835'008);
  EXPECT_EQ(num_blocks_in(1'835'007, spec), 0);
  EXPECT_EQ(num_blocks_in(2 * 1'835'008, spec), 2);
}

TEST(KvSpec, GroupsShareBlocksOfTheLargest) {
  KvCacheSpec spec{{group_of(4, 2, 16), group_of(6, 2, 16)}, 10};
  EXPECT_EQ(spec.block_bytes(), spec.groups[1].block_bytes());
  EXPECT_EQ(spec.total_bytes(), 10 * 6 * 2 * 16 * 2 * 16 * 2);
}

TEST(KvSpec, KeysAndValuesMayDiffer) {
  KvGroupSpec group = group_of(1, 2, 64);
  group.head_dim_v = 32;
  group.dtype = DType::kF32;
  EXPECT_EQ(group.block_bytes(), 16 * 2 * (64 + 32) * 4);
}

TEST(KvSpec, KernelBlocks) {
  KvGroupSpec group = group_of(1, 1, 16);
  group.block_size = 64;
  EXPECT_EQ(group.kernel_blocks_per_block(), 4);
  std::vector<int32_t> kernel_blocks;
  for (const int32_t block : {2, 5}) {
    for (int32_t i = 0; i < group.kernel_blocks_per_block(); ++i) {
      kernel_blocks.push_back(block * group.kernel_blocks_per_block() + i);
    }
  }
  EXPECT_THAT(kernel_blocks, ::testing::ElementsAre(8, 9, 10, 11, 20, 21, 22, 23));
}

TEST(KvMath, MaxBlocksPerRow) {
  EXPECT_EQ(max_blocks_per_row(1000, 16), 64);  // ceil is 63, rounded up to a multiple of 8
  EXPECT_EQ(max_blocks_per_row(1024, 16), 64);
  EXPECT_EQ(max_blocks_per_row(1025, 16), 72);
  EXPECT_EQ(max_blocks_per_row(1000, 128), 8);
  EXPECT_EQ(max_blocks_per_row(1000, 256), 4);
}

TEST(KvMath, WindowEdges) {
  EXPECT_EQ(first_token_in_window(7, 4), 4);  // tokens 0..3 can be freed
  EXPECT_EQ(first_token_in_window(3, 4), 0);
  EXPECT_EQ(first_token_in_window(4, 4), 1);
  EXPECT_EQ(first_token_in_window(9, 1), 9);
  EXPECT_EQ(window_hit_blocks(33, 16), 2);
  EXPECT_EQ(window_hit_blocks(34, 16), 3);
  EXPECT_EQ(window_hit_blocks(1, 16), 0);
}

TEST(KvMath, WindowBlockCap) {
  EXPECT_EQ(max_window_blocks(128, 16'384, 131'072, 16), 1033);
  EXPECT_EQ(max_window_blocks(4, 16, 1024, 2), 11);
  EXPECT_EQ(max_window_blocks(4096, 16'384, 8192, 16), 513);  // the context also limits it
}

}  // namespace
}  // namespace warprow
