// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"
#include "kv/block_hash.h"

#include <cstdint>
#include <vector>

namespace warprow {

// The prefix cache's map from (block hash, group) to the block that holds it: open addressing with
// linear probing and backward-shift deletion (Knuth, TAOCP 3, 6.4, algorithm R), sized once for
// every block of the pool.
//
// Owns: its slots, not the blocks that they refer to.
// Thread: one, the scheduler's.
// Invariant: a block is in the map at most once; several blocks may have equal keys, and find() returns one of
// them.
class PrefixIndex {
 public:
  explicit PrefixIndex(int32_t num_blocks);

  // kNullBlock if the key is absent.
  [[nodiscard]] BlockId find(const BlockHash& hash, int32_t group) const;
  void insert(const BlockHash& hash, int32_t group, BlockId block);
  // The pair must be present.
  void erase(const BlockHash& hash, int32_t group, BlockId block);
  [[nodiscard]] int32_t size() const { return size_; }

 private:
  struct Slot {
    BlockHash hash;
    int32_t group = 0;
    BlockId block = kNullBlock;  // null: the slot is empty
  };

  // The hash is already uniform; the group only has to separate equal hashes.
  [[nodiscard]] size_t home(const BlockHash& hash, int32_t group) const {
    return (hash.lo + static_cast<uint64_t>(group) * 0x9e3779b97f4a7c15ULL) & mask_;
  }

  std::vector<Slot> slots_;  // a power of two, at least twice the blocks
  size_t mask_ = 0;
  int32_t size_ = 0;
};

}  // namespace warprow
