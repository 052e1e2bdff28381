// SPDX-License-Identifier: Apache-2.0
// The regions through which GPUs exchange, as plain arithmetic.
#include "comm/cuda/peer_sizes.h"

#include "comm/cpu/shared_memory_communicator.h"
#include "comm/cuda/cuda_ranks.h"

#include <bit>

#include <gtest/gtest.h>

namespace warprow::cuda {
namespace {

TEST(PeerSizes, StagesHaveRoomForTheResultsOfStepsInFlight) {
  for (int32_t stages = 2; stages <= kMaxPeers; ++stages) {
    const PeerSizes sizes = stage_sizes(stages);
    EXPECT_TRUE(std::has_single_bit(static_cast<uint32_t>(sizes.move_slots)));
    // The chunks of the largest results that one block has.
    const auto chunks = static_cast<int64_t>(kMostResultBytes) / kMoveChunk;
    const int64_t of_block = (chunks + kMoveBlocks - 1) / kMoveBlocks;
    EXPECT_GE(sizes.move_slots, of_block * (stages + 1)) << stages;
    EXPECT_FALSE(sizes.sums);
  }
}

TEST(PeerSizes, PartsOfARegionDoNotOverlap) {
  for (int32_t size = 2; size <= kMaxPeers; ++size) {
    const PeerLayout layout(size, tensor_sizes());
    EXPECT_GE(layout.small, static_cast<int64_t>(sizeof(PeerWords)));
    EXPECT_EQ(layout.large - layout.small, int64_t{kSmallBlocks} * 2 * size * kSmallSlot);
    // Each of two halves has two phases, whose slots have a share of a chunk each. Two ranks take it for four chunks.
    EXPECT_EQ(layout.moves - layout.large, int64_t{kLargeBlocks} * 2 * size * kLargeSlot);
    EXPECT_EQ(layout.bytes - layout.moves,
              int64_t{size} * kMoveBlocks * layout.move_slots * kMoveChunk);
    for (const int64_t at : {layout.small, layout.large, layout.moves}) {
      EXPECT_EQ(at % 256, 0);
    }
  }
}

TEST(PeerSizes, ARankAloneTakesNoMemory) {
  EXPECT_EQ(cuda_comm_bytes(rank_place(0, 1, 1)), 0);
  EXPECT_GT(cuda_comm_bytes(rank_place(0, 2, 1)), 0);
  EXPECT_EQ(cuda_comm_bytes(rank_place(1, 2, 1)), cuda_comm_bytes(rank_place(0, 2, 1)));
  EXPECT_EQ(cuda_comm_bytes(rank_place(0, 2, 2)),
            cuda_comm_bytes(rank_place(0, 2, 1)) + cuda_comm_bytes(rank_place(0, 1, 2)));
}

}  // namespace
}  // namespace warprow::cuda
