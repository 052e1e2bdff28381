// SPDX-License-Identifier: Apache-2.0
#include "sched/prefix_index.h"

#include "base/check.h"

#include <bit>

namespace warprow {

PrefixIndex::PrefixIndex(int32_t num_blocks)
    : slots_(std::bit_ceil(2 * static_cast<size_t>(num_blocks))), mask_(slots_.size() - 1) {}

BlockId PrefixIndex::find(const BlockHash& hash, int32_t group) const {
  for (size_t at = home(hash, group);; at = (at + 1) & mask_) {
    const Slot& slot = slots_[at];
    if (slot.block == kNullBlock || (slot.hash == hash && slot.group == group)) {
      return slot.block;
    }
  }
}

void PrefixIndex::insert(const BlockHash& hash, int32_t group, BlockId block) {
  size_t at = home(hash, group);
  while (slots_[at].block != kNullBlock) {
    at = (at + 1) & mask_;
  }
  slots_[at] = {hash, group, block};
  ++size_;
}

void PrefixIndex::erase(const BlockHash& hash, int32_t group, BlockId block) {
  size_t hole = home(hash, group);
  while (slots_[hole].block != block) {
    WR_CHECK(
        slots_[hole].block != kNullBlock, "block {} is not in the prefix index", index_of(block));
    hole = (hole + 1) & mask_;
  }
  // Move back every later entry of the run that find() could no longer reach across the hole.
  for (size_t at = (hole + 1) & mask_; slots_[at].block != kNullBlock; at = (at + 1) & mask_) {
    const size_t wanted = home(slots_[at].hash, slots_[at].group);
    if (((at - wanted) & mask_) >= ((at - hole) & mask_)) {
      slots_[hole] = slots_[at];
      hole = at;
    }
  }
  slots_[hole] = {};
  --size_;
}

}  // namespace warprow
