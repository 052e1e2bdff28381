// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/native/params.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace warprow::cuda {
namespace {

constexpr int32_t kSms = 132;

TEST(PromptSplit, FewLongItemsOccupyTheDevice) {
  EXPECT_EQ(prompt_split(16, 66, kSms).pieces, 5);  // 128 queries of Qwen3-0.6B on 4,096 keys
  EXPECT_EQ(prompt_split(32, 66, kSms).pieces, 4);  // of the 8B
  EXPECT_EQ(prompt_split(64, 72, kSms).pieces, 2);
  EXPECT_EQ(prompt_split(8, 257, kSms).pieces, 16);
  EXPECT_EQ(prompt_split(16, 257, kSms).pieces, 4);  // as many as have room
}

TEST(PromptSplit, ManyOrShortItemsStayWhole) {
  EXPECT_EQ(prompt_split(128, 500, kSms).pieces, 1);
  EXPECT_EQ(prompt_split(16, 16, kSms).pieces, 1);
  EXPECT_EQ(prompt_split(16, 0, kSms).pieces, 1);  // not known
}

TEST(PromptSplit, HasRoomForEveryPartialSum) {
  for (const int32_t items : {1, 2, 7, 8, 16, 31, 32, 60, 64, 66, 100}) {
    for (const int32_t tiles : {24, 40, 66, 130, 257, 500, 2048}) {
      const PromptSplit split = prompt_split(items, tiles, kSms);
      if (split.pieces == 1) {
        continue;
      }
      EXPECT_LE(items * std::max(2, split.slots), kMaxPromptParts) << items << " " << tiles;
      EXPECT_GE(split.pieces * split.piece_tiles, tiles);
      // Behind the first piece each part has a slot of its own.
      const int32_t parts = num_parts(0, tiles * kPartTile);
      EXPECT_GE(split.slots, 1 + parts - (parts + split.pieces - 1) / split.pieces);
    }
  }
}

}  // namespace
}  // namespace warprow::cuda
