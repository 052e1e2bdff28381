// SPDX-License-Identifier: Apache-2.0
#include "kv/block_hash.h"

#include <array>
#include <bit>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

// The published test vectors of SipHash-2-4-128: input 00 01 .. of length n, output of 16 bytes.
TEST(SipHash, ReferenceVectors) {
  std::array<std::byte, 16> input{};
  for (size_t i = 0; i < input.size(); ++i) {
    input[i] = static_cast<std::byte>(i);
  }
  const auto hash = [&](size_t n) { return sip_hash_128(std::span(input).first(n)); };
  EXPECT_EQ(hash(0), (BlockHash{0xe6a825ba047f81a3ULL, 0x930255c71472f66dULL}));
  EXPECT_EQ(hash(1), (BlockHash{0x44af996bd8c187daULL, 0x45fc229b11597634ULL}));
}

TEST(BlockHash, DependsOnEverything) {
  std::vector<TokenId> tokens(16);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<TokenId>(i);
  }
  const BlockHash base = hash_block({}, tokens, {});
  EXPECT_EQ(hash_block({}, tokens, {}), base);
  EXPECT_NE(hash_block({}, tokens, {.adapter = 0}), base);
  EXPECT_NE(hash_block({}, tokens, {.cache_salt = 1}), base);
  EXPECT_NE(hash_block({}, tokens, {.mm_hash = 1}), base);
  EXPECT_NE(hash_block(base, tokens, {}), base);
  EXPECT_NE(hash_block({0, 1}, tokens, {}), base);
  EXPECT_NE(hash_block({}, std::span(tokens).first(15), {}), base);
  for (TokenId& token : tokens) {
    token ^= 1 << 20;
    EXPECT_NE(hash_block({}, tokens, {}), base);
    token ^= 1 << 20;
  }
}

// Frozen values. Block names must not change between builds, or caches outside the process would become stale.
TEST(BlockHash, IsFixed) {
  const std::vector<TokenId> tokens = {1, 2, 3};
  const BlockHash hash = hash_block({}, tokens, {});
  std::array<std::byte, 52> bytes{};
  std::fill(bytes.begin() + 16, bytes.begin() + 20, std::byte{0xff});  // adapter -1
  bytes[40] = std::byte{1};
  bytes[44] = std::byte{2};
  bytes[48] = std::byte{3};
  EXPECT_EQ(hash, sip_hash_128(bytes));
}

TEST(BlockHash, NoCollisionsAndEveryBitFlips) {
  std::mt19937 random(7);
  std::set<std::pair<uint64_t, uint64_t>> seen;
  std::vector<TokenId> tokens(16);
  std::array<int, 128> flips{};
  const int num_rounds = 20'000;
  for (int round = 0; round < num_rounds; ++round) {
    for (TokenId& token : tokens) {
      token = static_cast<TokenId>(random() % 4);
    }
    tokens[0] = round;
    const BlockHash hash = hash_block({}, tokens, {});
    EXPECT_TRUE(seen.emplace(hash.lo, hash.hi).second);
    tokens[random() % 16] ^= 1 << (random() % 30);
    const BlockHash other = hash_block({}, tokens, {});
    for (size_t bit = 0; bit < 64; ++bit) {
      flips[bit] += static_cast<int>(((hash.lo ^ other.lo) >> bit) & 1);
      flips[bit + 64] += static_cast<int>(((hash.hi ^ other.hi) >> bit) & 1);
    }
  }
  for (const int count : flips) {
    EXPECT_NEAR(count, num_rounds / 2, num_rounds / 40);  // 7 standard deviations
  }
}

}  // namespace
}  // namespace warprow
