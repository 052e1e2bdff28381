// SPDX-License-Identifier: Apache-2.0
#include "sched/prefix_index.h"

#include "base/check.h"

#include <map>
#include <random>
#include <set>
#include <tuple>

#include <gtest/gtest.h>

namespace warprow {
namespace {

// Compares with a multimap. Hashes collide on purpose, and keys repeat.
TEST(PrefixIndex, AgreesWithAMultimap) {
  const int32_t num_blocks = 64;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    PrefixIndex index(num_blocks);
    using Key = std::tuple<uint64_t, uint64_t, int32_t>;
    std::map<int32_t, Key> key_of_block;
    std::map<Key, std::set<int32_t>> blocks_of_key;
    for (int32_t round = 0; round < 2000; ++round) {
      const auto block = static_cast<int32_t>(random() % (num_blocks - 1)) + 1;
      if (const auto it = key_of_block.find(block); it != key_of_block.end()) {
        const auto [lo, hi, group] = it->second;
        index.erase({lo, hi}, group, BlockId{block});
        blocks_of_key[it->second].erase(block);
        key_of_block.erase(it);
      } else {
        const Key key = {random() % 24, random() % 3, static_cast<int32_t>(random() % 2)};
        index.insert({std::get<0>(key), std::get<1>(key)}, std::get<2>(key), BlockId{block});
        key_of_block[block] = key;
        blocks_of_key[key].insert(block);
      }
      ASSERT_EQ(index.size(), static_cast<int32_t>(key_of_block.size()));
      for (const auto& [key, blocks] : blocks_of_key) {
        const int32_t found =
            index_of(index.find({std::get<0>(key), std::get<1>(key)}, std::get<2>(key)));
        ASSERT_EQ(found == 0, blocks.empty());
        ASSERT_TRUE(found == 0 || blocks.contains(found));
      }
    }
  }
}

TEST(PrefixIndex, ErasingWhatIsNotThereIsOurMistake) {
  PrefixIndex index(4);
  const ScopedCheckThrows throws;
  EXPECT_THROW(index.erase({1, 2}, 0, BlockId{1}), CheckFailure);
}

}  // namespace
}  // namespace warprow
