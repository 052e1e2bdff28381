// SPDX-License-Identifier: Apache-2.0
#include "sched/block_pool.h"

#include "base/check.h"

namespace warprow {

BlockPool::BlockPool(int32_t num_blocks, bool fenced)
    : num_blocks_(num_blocks), fenced_(fenced), index_(num_blocks) {
  WR_CHECK_GE(num_blocks, 2);
  blocks_.resize(static_cast<size_t>(num_blocks) + 2);
  for (const int32_t head : {num_blocks, num_blocks + 1}) {
    node(head).prev = node(head).next = head;
  }
  for (int32_t i = 1; i < num_blocks; ++i) {
    link_after(node(num_blocks_).prev, i);
    ++num_free_;
  }
}

void BlockPool::link_after(int32_t before, int32_t i) {
  const int32_t after = node(before).next;
  node(i).prev = before;
  node(i).next = after;
  node(before).next = i;
  node(after).prev = i;
}

void BlockPool::unlink(int32_t i) {
  node(node(i).prev).next = node(i).next;
  node(node(i).next).prev = node(i).prev;
}

BlockId BlockPool::take() {
  WR_CHECK_GT(num_free_, 0);
  const BlockId block{node(num_blocks_).next};
  Block& b = at(block);
  unlink(index_of(block));
  --num_free_;
  if (b.group >= 0) {
    index_.erase(b.hash, b.group, block);
    b.group = -1;
  }
  b.num_refs = 1;
  return block;
}

void BlockPool::touch(BlockId block) {
  Block& b = at(block);
  WR_CHECK_GE(b.group, 0);
  if (b.num_refs == 0) {
    unlink(index_of(block));
    if (b.fence == kNoFence) {
      --num_free_;
    } else {
      b.fence = kNoFence;
      --num_fenced_;
    }
  }
  ++b.num_refs;
}

void BlockPool::release(BlockId block, int64_t last_step) {
  Block& b = at(block);
  WR_CHECK_GT(b.num_refs, 0);
  if (--b.num_refs > 0) {
    return;
  }
  if (fenced_ && last_step > completed_step_) {
    b.fence = last_step;
    link_after(node(num_blocks_ + 1).prev, index_of(block));
    ++num_fenced_;
  } else {
    make_free(index_of(block));
  }
}

void BlockPool::make_free(int32_t i) {
  link_after(node(i).group >= 0 ? node(num_blocks_).prev : num_blocks_, i);
  ++num_free_;
  ++num_changes_;
}

void BlockPool::complete(int64_t step) {
  completed_step_ = step;
  // Releases never decrease in step, so the fenced ring is sorted.
  const int32_t head = num_blocks_ + 1;
  for (int32_t i = node(head).next; i != head && node(i).fence <= step; i = node(head).next) {
    unlink(i);
    node(i).fence = kNoFence;
    --num_fenced_;
    make_free(i);
  }
}

void BlockPool::set_hash(BlockId block, const BlockHash& hash, int32_t group) {
  Block& b = at(block);
  WR_CHECK_GT(b.num_refs, 0);
  if (b.group < 0) {
    b.hash = hash;
    b.group = group;
    index_.insert(hash, group, block);
    ++num_changes_;
  }
}

void BlockPool::forget_contents() {
  WR_CHECK_EQ(num_free_, num_blocks_ - 1);
  for (int32_t i = 1; i < num_blocks_; ++i) {
    Block& b = node(i);
    if (b.group >= 0) {
      index_.erase(b.hash, b.group, BlockId{i});
      b.group = -1;
    }
  }
}

std::vector<BlockId> BlockPool::free_order() const {
  std::vector<BlockId> order;
  for (int32_t i = blocks_[static_cast<size_t>(num_blocks_)].next; i != num_blocks_;
       i = blocks_[static_cast<size_t>(i)].next) {
    order.push_back(BlockId{i});
  }
  return order;
}

}  // namespace warprow
