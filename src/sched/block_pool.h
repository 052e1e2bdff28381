// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"
#include "kv/block_hash.h"
#include "sched/prefix_index.h"

#include <cstdint>
#include <vector>

namespace warprow {

// All KV blocks of the cache, shared by every KV group: the number of references to each, the content known by
// hash, and the order in which free blocks are given out.
//
// The free list is LRU for blocks with cached content: a released block goes to the back if it has a hash and to
// the front if not. Blocks are taken from the front, and a hash is forgotten only when its block is taken. With
// `fenced`, a released block waits until the step given with it is complete, for devices (or connectors) that read
// a block out of stream order. Without it a block may be reused at once, which is safe because all steps run in one
// stream.
//
// Owns: the state of blocks 1 .. num_blocks - 1; block 0 is the null block, never given out or
// released.
// Thread: one, the scheduler's.
// Invariant: a block has references, or lies in exactly one of the two lists (free, fenced).
class BlockPool {
 public:
  BlockPool(int32_t num_blocks, bool fenced);

  [[nodiscard]] int32_t num_blocks() const { return num_blocks_; }
  [[nodiscard]] int32_t num_free() const { return num_free_; }
  [[nodiscard]] int32_t num_fenced() const { return num_fenced_; }
  [[nodiscard]] int32_t num_refs(BlockId block) const { return at(block).num_refs; }
  [[nodiscard]] bool is_hashed(BlockId block) const { return at(block).group >= 0; }
  // How often a block became free or got a hash. A request refused for lack of blocks need not retry before this
  // grows.
  [[nodiscard]] int64_t num_changes() const { return num_changes_; }

  // The free block at the front, with one reference and no hash. num_free() must be > 0.
  BlockId take();
  // One more reference to a block with known content; a free one leaves its list.
  void touch(BlockId block);
  // Drops a reference. `last_step`: the last step that may use the block.
  void release(BlockId block, int64_t last_step);
  // Steps up to and including `step` are complete: blocks fenced by them become free.
  void complete(int64_t step);

  // Makes the block's content findable by its hash. A block that already has a hash keeps it.
  void set_hash(BlockId block, const BlockHash& hash, int32_t group);
  [[nodiscard]] BlockId find(const BlockHash& hash, int32_t group) const {
    return index_.find(hash, group);
  }

  // Forgets the content of every block; none may be held or fenced.
  void forget_contents();

  // For tests: the free blocks in the order in which they will be given out.
  [[nodiscard]] std::vector<BlockId> free_order() const;

 private:
  struct Block {
    int32_t prev = 0;
    int32_t next = 0;
    int32_t num_refs = 0;
    int32_t group = -1;        // of the hash; -1: no hash
    int64_t fence = kNoFence;  // step it waits for while in the fenced list
    BlockHash hash;
  };
  static constexpr int64_t kNoFence = -1;

  [[nodiscard]] Block& at(BlockId block) { return blocks_[static_cast<size_t>(index_of(block))]; }
  [[nodiscard]] const Block& at(BlockId block) const {
    return blocks_[static_cast<size_t>(index_of(block))];
  }
  [[nodiscard]] Block& node(int32_t i) { return blocks_[static_cast<size_t>(i)]; }
  void link_after(int32_t before, int32_t i);
  void unlink(int32_t i);
  void make_free(int32_t i);

  int32_t num_blocks_;
  bool fenced_;
  int32_t num_free_ = 0;
  int32_t num_fenced_ = 0;
  int64_t num_changes_ = 0;
  int64_t completed_step_ = 0;
  std::vector<Block>
      blocks_;  // [num_blocks + 2]: the last two are the heads of the free and the fenced ring
  PrefixIndex index_;
};

}  // namespace warprow
