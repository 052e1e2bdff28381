// SPDX-License-Identifier: Apache-2.0
#include "sched/kv_cache_manager.h"

#include "base/check.h"
#include "base/math.h"
#include "kv/kv_math.h"

#include <algorithm>
#include <numeric>

namespace warprow {
namespace {

int32_t num_of(const auto& list) { return static_cast<int32_t>(list.size()); }

}  // namespace

KvCacheManager::KvCacheManager(const KvCacheSpec& spec, const Limits& limits)
    : enable_prefix_caching_(limits.enable_prefix_caching),
      pool_(spec.num_blocks, limits.fence_freed_blocks) {
  WR_CHECK(!spec.groups.empty());
  for (const KvGroupSpec& group : spec.groups) {
    WR_CHECK(group.kind == KvKind::kFull || group.kind == KvKind::kSlidingWindow);
    const bool is_window = group.kind == KvKind::kSlidingWindow;
    WR_CHECK(group.block_size > 0 && (!is_window || group.window > 0));
    auto known = std::find(block_sizes_.begin(), block_sizes_.end(), group.block_size);
    const auto chain = static_cast<int32_t>(known - block_sizes_.begin());
    if (known == block_sizes_.end()) {
      block_sizes_.push_back(group.block_size);
    }
    const int32_t max_blocks =
        is_window
            ? max_window_blocks(
                  group.window, limits.max_step_tokens, limits.max_model_len, group.block_size)
            : RequestKv::kNever;
    groups_.push_back({is_window, group.window, group.block_size, chain, max_blocks});
    alignment_ = std::lcm(alignment_, group.block_size);
  }
  hits_.resize(groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    hits_[g].reserve(static_cast<size_t>(ceil_div(limits.max_model_len, groups_[g].block_size)));
  }
}

int32_t KvCacheManager::max_blocks_for(int32_t num_tokens) const {
  int64_t blocks = 0;
  for (const Group& group : groups_) {
    blocks += std::min(ceil_div(num_tokens, group.block_size), group.max_blocks);
  }
  return static_cast<int32_t>(std::min<int64_t>(blocks, RequestKv::kNever));
}

void KvCacheManager::init(RequestKv& kv, const BlockHashKeys& keys, int32_t num_tokens) const {
  kv.keys = keys;
  kv.tables.resize(groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    kv.tables[g].blocks.reserve(static_cast<size_t>(ceil_div(num_tokens, groups_[g].block_size)));
  }
  if (enable_prefix_caching_) {
    kv.chains.resize(block_sizes_.size());
    for (size_t c = 0; c < kv.chains.size(); ++c) {
      kv.chains[c].clear();
      kv.chains[c].reserve(static_cast<size_t>(num_tokens / block_sizes_[c]));
    }
  }
}

void KvCacheManager::extend_chains(RequestKv& kv, std::span<const TokenId> tokens) const {
  for (size_t c = 0; c < kv.chains.size(); ++c) {
    std::vector<BlockHash>& chain = kv.chains[c];
    const auto block_size = static_cast<size_t>(block_sizes_[c]);
    while ((chain.size() + 1) * block_size <= tokens.size()) {
      const BlockHash parent = chain.empty() ? BlockHash{} : chain.back();
      chain.push_back(
          hash_block(parent, tokens.subspan(chain.size() * block_size, block_size), kv.keys));
    }
  }
}

BlockId KvCacheManager::find(const RequestKv& kv, size_t group, int32_t block_idx) const {
  const std::vector<BlockHash>& chain = kv.chains[static_cast<size_t>(groups_[group].chain)];
  return pool_.find(chain[static_cast<size_t>(block_idx)], static_cast<int32_t>(group));
}

// Tokens of the unbroken run of cached blocks from the start, at most `limit`.
int32_t KvCacheManager::full_hit(const RequestKv& kv, size_t group, int32_t limit) const {
  const int32_t max_blocks = limit / groups_[group].block_size;
  int32_t blocks = 0;
  while (blocks < max_blocks && find(kv, group, blocks) != kNullBlock) {
    ++blocks;
  }
  return blocks * groups_[group].block_size;
}

// The last boundary up to `limit` before which all that the next query's window sees is cached.
int32_t KvCacheManager::window_hit(const RequestKv& kv, size_t group, int32_t limit) const {
  const int32_t block_size = groups_[group].block_size;
  const int32_t needed = window_hit_blocks(groups_[group].window, block_size);
  int32_t run = 0;
  for (int32_t i = limit / block_size - 1; i >= 0 && run < needed; --i) {
    run = find(kv, group, i) != kNullBlock ? run + 1 : 0;
    if (run == needed) {
      return (i + needed) * block_size;
    }
  }
  return needed == 0 ? limit
                     : run * block_size;  // a shorter run counts only if it reaches back to token 0
}

int32_t KvCacheManager::find_prefix(RequestKv& kv,
                                    std::span<const TokenId> tokens,
                                    int32_t max_tokens) {
  if (!enable_prefix_caching_) {
    return 0;
  }
  extend_chains(kv, tokens);
  const auto align = [this](int32_t n) { return n / alignment_ * alignment_; };
  int32_t hit = align(max_tokens);
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (!groups_[g].is_window) {
      hit = align(full_hit(kv, g, hit));
    }
  }
  // A run from the start may be cut anywhere, a window's may not: shrink until every window agrees.
  for (bool agreed = false; !agreed;) {
    agreed = true;
    for (size_t g = 0; g < groups_.size(); ++g) {
      const int32_t boundary = groups_[g].is_window ? align(window_hit(kv, g, hit)) : hit;
      agreed = agreed && boundary == hit;
      hit = boundary;
    }
  }
  collect_hits(kv, hit);
  return hit;
}

void KvCacheManager::collect_hits(const RequestKv& kv, int32_t num_hit) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    const int32_t blocks = num_hit / group.block_size;
    const int32_t seen =
        group.is_window ? window_hit_blocks(group.window, group.block_size) : blocks;
    hits_[g].clear();
    for (int32_t i = 0; i < blocks; ++i) {
      hits_[g].push_back(i < blocks - seen ? kNullBlock : find(kv, g, i));
    }
  }
}

// Free blocks that a request needs to take its prefix and, in time, all of its known tokens.
int32_t KvCacheManager::free_blocks_to_admit(int32_t num_known) const {
  int64_t needed = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const std::vector<BlockId>& hits = hits_[g];
    const auto skipped = static_cast<int32_t>(std::count(hits.begin(), hits.end(), kNullBlock));
    const int32_t held =
        std::min(ceil_div(num_known, groups_[g].block_size) - skipped, groups_[g].max_blocks);
    needed += std::max(0, held - (num_of(hits) - skipped));
    // A cached block that nobody holds counts as free until the hit takes it.
    needed += std::count_if(hits.begin(), hits.end(), [this](BlockId block) {
      return block != kNullBlock && pool_.num_refs(block) == 0;
    });
  }
  return static_cast<int32_t>(std::min<int64_t>(needed, RequestKv::kNever));
}

bool KvCacheManager::admit(RequestKv& kv, const Admission& admission, SchedulerOutput& out) {
  if (admission.num_hit == 0) {
    collect_hits(kv, 0);
  }
  if (free_blocks_to_admit(admission.num_known) > pool_.num_free()) {
    return false;
  }
  for (const std::vector<BlockId>& hits : hits_) {
    for (const BlockId block : hits) {
      if (block != kNullBlock) {
        pool_.touch(block);
      }
    }
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    RequestKv::Table& table = kv.tables[g];
    table.blocks.assign(hits_[g].begin(), hits_[g].end());
    table.num_cached = num_of(hits_[g]);
    table.num_dropped =
        static_cast<int32_t>(std::count(hits_[g].begin(), hits_[g].end(), kNullBlock));
    append_blocks(kv, g, admission.num_tokens);
    emit(kv, g, 0, admission.row, out);
  }
  refresh_marks(kv);
  return true;
}

bool KvCacheManager::grow(RequestKv& kv, int32_t num_tokens, RowId row, SchedulerOutput& out) {
  int32_t needed = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    needed +=
        std::max(0, ceil_div(num_tokens, groups_[g].block_size) - num_of(kv.tables[g].blocks));
  }
  if (needed > pool_.num_free()) {
    return false;
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    const size_t start = kv.tables[g].blocks.size();
    append_blocks(kv, g, num_tokens);
    emit(kv, g, start, row, out);
  }
  refresh_marks(kv);
  return true;
}

void KvCacheManager::append_blocks(RequestKv& kv, size_t group, int32_t num_tokens) {
  std::vector<BlockId>& blocks = kv.tables[group].blocks;
  const int32_t wanted = ceil_div(num_tokens, groups_[group].block_size);
  while (num_of(blocks) < wanted) {
    blocks.push_back(pool_.take());
  }
}

void KvCacheManager::emit(
    const RequestKv& kv, size_t group, size_t start, RowId row, SchedulerOutput& out) {
  const std::vector<BlockId>& blocks = kv.tables[group].blocks;
  const auto count = static_cast<int32_t>(blocks.size() - start);
  if (count > 0) {
    out.block_appends.push_back({row,
                                 static_cast<int32_t>(group),
                                 static_cast<int32_t>(start),
                                 {num_of(out.block_ids), count}});
    out.block_ids.insert(
        out.block_ids.end(), blocks.begin() + static_cast<std::ptrdiff_t>(start), blocks.end());
  }
}

void KvCacheManager::refresh_marks(RequestKv& kv) const {
  kv.capacity = kv.window_at = kv.cache_at = RequestKv::kNever;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    const RequestKv::Table& table = kv.tables[g];
    kv.capacity = std::min(kv.capacity, num_of(table.blocks) * group.block_size);
    if (group.is_window) {
      kv.window_at =
          std::min(kv.window_at, (table.num_dropped + 1) * group.block_size + group.window - 1);
    }
    if (enable_prefix_caching_) {
      kv.cache_at = std::min(kv.cache_at, (table.num_cached + 1) * group.block_size);
    }
  }
}

void KvCacheManager::drop_outside_windows(RequestKv& kv, int32_t num_computed, int64_t last_step) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (!groups_[g].is_window) {
      continue;
    }
    RequestKv::Table& table = kv.tables[g];
    const int32_t first =
        first_token_in_window(num_computed, groups_[g].window) / groups_[g].block_size;
    for (int32_t i = first - 1; i >= table.num_dropped; --i) {
      pool_.release(table.blocks[static_cast<size_t>(i)], last_step);
      table.blocks[static_cast<size_t>(i)] = kNullBlock;
    }
    table.num_dropped = std::max(table.num_dropped, first);
  }
  refresh_marks(kv);
}

void KvCacheManager::cache_full_blocks(RequestKv& kv,
                                       std::span<const TokenId> tokens,
                                       int32_t num_confirmed) {
  extend_chains(kv, tokens);
  for (size_t g = 0; g < groups_.size(); ++g) {
    RequestKv::Table& table = kv.tables[g];
    const std::vector<BlockHash>& chain = kv.chains[static_cast<size_t>(groups_[g].chain)];
    for (; (table.num_cached + 1) * groups_[g].block_size <= num_confirmed; ++table.num_cached) {
      const auto i = static_cast<size_t>(table.num_cached);
      if (table.blocks[i] != kNullBlock) {
        pool_.set_hash(table.blocks[i], chain[i], static_cast<int32_t>(g));
      }
    }
  }
  refresh_marks(kv);
}

void KvCacheManager::release(RequestKv& kv, int64_t last_step) {
  for (RequestKv::Table& table : kv.tables) {
    for (size_t i = table.blocks.size(); i-- > 0;) {
      if (table.blocks[i] != kNullBlock) {
        pool_.release(table.blocks[i], last_step);
      }
    }
    table.blocks.clear();
    table.num_cached = table.num_dropped = 0;
  }
  kv.capacity = 0;
  kv.window_at = kv.cache_at = RequestKv::kNever;
}

}  // namespace warprow
