// SPDX-License-Identifier: Apache-2.0
// Where the parts of batch-invariant attention begin, and how a row is split between them.
#include "kernels/attention/native/params.h"
#include "kernels/attention/native/parts.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace warprow::cuda {
namespace {

constexpr int32_t kFar = 1 << 20;

TEST(AttentionParts, BeginAtThesePositions) {
  struct Case {
    int32_t position, index, begin, end;
  };
  constexpr std::array<Case, 14> kCases = {{{0, 0, 0, 256},
                                            {255, 0, 0, 256},
                                            {256, 1, 256, 512},
                                            {1000, 3, 768, 1024},
                                            {4096, 16, 4096, 4352},
                                            {8191, 31, 7936, 8192},
                                            {8192, 32, 8192, 8704},
                                            {8703, 32, 8192, 8704},
                                            {8704, 33, 8704, 9216},
                                            {16383, 47, 15872, 16384},
                                            {16384, 48, 16384, 17408},
                                            {32768, 64, 32768, 34816},
                                            {131072, 96, 131072, 139264},
                                            {kFar, 144, kFar, kFar + 65536}}};
  for (const Case& c : kCases) {
    EXPECT_EQ(part_index(c.position), c.index) << c.position;
    EXPECT_EQ(part_begin(c.index), c.begin) << c.position;
    EXPECT_EQ(part_end(c.position), c.end) << c.position;
  }
}

TEST(AttentionParts, FollowEachOtherAndConsistOfTiles) {
  int32_t begin = 0;
  for (int32_t index = 0; begin < kFar; ++index) {
    ASSERT_EQ(part_begin(index), begin);
    const int32_t end = part_end(begin);
    ASSERT_EQ(part_begin(index + 1), end);
    ASSERT_EQ(begin % kPartTile, 0);
    ASSERT_LE(end - begin, std::max(kLeastPart, begin / kPartsPerDoubling)) << "a small share";
    for (const int32_t position : {begin, begin + 1, begin + kPartTile, end - 1}) {
      ASSERT_EQ(part_index(position), index) << position;
      ASSERT_EQ(part_end(position), end) << position;
    }
    begin = end;
  }
  EXPECT_EQ(part_index(INT32_MAX), part_index(1 << 30) + kPartsPerDoubling - 1);
}

TEST(AttentionParts, ARowIsSplitBetweenThem) {
  const std::vector<int32_t> lens = {1,
                                     63,
                                     64,
                                     255,
                                     256,
                                     257,
                                     511,
                                     512,
                                     513,
                                     1000,
                                     2048,
                                     4097,
                                     8191,
                                     8192,
                                     8193,
                                     20000,
                                     33000,
                                     100000};
  for (const int32_t len : lens) {
    for (const int32_t window : {0, 1, 100, 1024}) {
      for (const int32_t queries : {1, 5}) {
        const int32_t tiles = decode_tiles(len, queries, window, true);
        const int32_t begin = ((len + kDecodeTile - 1) / kDecodeTile - tiles) * kDecodeTile;
        ASSERT_EQ(begin % kPartTile, 0);
        ASSERT_LE(begin, window == 0 ? 0 : std::max(0, len - window - queries + 1));
        const int32_t parts = num_parts(begin, len);
        for (int32_t pieces = 1; pieces <= std::min(parts, 64); ++pieces) {
          int32_t key = begin;
          int32_t part = 0;
          for (int32_t i = 0; i < pieces; ++i) {
            const PartRun run = part_run(begin, len, pieces, i);
            ASSERT_EQ(run.begin, key);
            ASSERT_EQ(run.part, part);
            ASSERT_GT(run.end, run.begin);
            // As the decode kernel walks through a piece: it must not end inside a part.
            const int32_t end = (run.end + kDecodeTile - 1) / kDecodeTile * kDecodeTile;
            while (key < end) {
              key = std::min(part_end(key), end);
              ++part;
            }
            ASSERT_TRUE(i == pieces - 1 || key == part_end(key - 1)) << key;
          }
          ASSERT_EQ(part, parts);
          ASSERT_EQ(key, (len + kDecodeTile - 1) / kDecodeTile * kDecodeTile);
        }
      }
    }
  }
}

TEST(AttentionParts, TilesOfAWindowBeginWithATileOfTheOrder) {
  EXPECT_EQ(decode_tiles(1000, 1, 0, true), 63);
  EXPECT_EQ(decode_tiles(1000, 1, 100, false), 63 - 56) << "keys from 900 on, tiles from 896";
  EXPECT_EQ(decode_tiles(1000, 1, 100, true), 63 - 56);
  EXPECT_EQ(decode_tiles(1000, 1, 60, false), 63 - 58);
  EXPECT_EQ(decode_tiles(1000, 1, 60, true), 63 - 56);
  EXPECT_EQ(decode_tiles(0, 1, 60, true), 0);
}

}  // namespace
}  // namespace warprow::cuda
