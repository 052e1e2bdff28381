// SPDX-License-Identifier: Apache-2.0
#include "base/philox.h"

#include <array>

#include <gtest/gtest.h>

namespace warprow {
namespace {

void expect_words(const PhiloxBlock& block, const std::array<uint32_t, 4>& words) {
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(block.word[i], words[i]) << "word " << i;
  }
}

// The known-answer vectors that Random123 publishes for philox4x32 with 10 rounds.
TEST(Philox, KnownAnswers) {
  expect_words(philox4x32_10({{0, 0, 0, 0}}, 0, 0),
               {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  const uint32_t ones = 0xffffffffU;
  expect_words(philox4x32_10({{ones, ones, ones, ones}}, ones, ones),
               {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  expect_words(
      philox4x32_10({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0),
      {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST(Philox, TokenPicksTheLane) {
  const RandomKey key{0x299f31d0a4093822ULL, 7, RandomPurpose::kAccept};
  const PhiloxBlock block = philox4x32_10({{7, 1, 5, 0}}, 0xa4093822, 0x299f31d0);
  for (uint32_t lane = 0; lane < 4; ++lane) {
    EXPECT_EQ(random_bits(key, 20 + lane), block.word[lane]);
  }
  EXPECT_NE(random_bits(key, 20), random_bits({key.seed, 8, key.purpose}, 20));
  EXPECT_NE(random_bits(key, 20), random_bits({key.seed, 7, RandomPurpose::kSample}, 20));
  EXPECT_NE(random_bits(key, 20), random_bits({key.seed + 1, 7, key.purpose}, 20));
}

TEST(Philox, UniformIsOpenAndExact) {
  EXPECT_EQ(uniform_open(0), 0x1p-33);
  EXPECT_LT(uniform_open(0xffffffffU), 1.0);
  EXPECT_EQ(uniform_open(0xffffffffU), 1.0 - 0x1p-33);
  EXPECT_EQ(uniform_open(0x7fffffffU) + uniform_open(0x80000000U), 1.0)
      << "symmetric about one half";
}

}  // namespace
}  // namespace warprow
