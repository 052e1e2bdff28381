// SPDX-License-Identifier: Apache-2.0
#include "sched/kv_cache_manager.h"

#include "base/check.h"
#include "base/math.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace warprow {
namespace {

int32_t num_of(const auto& list) { return static_cast<int32_t>(list.size()); }

// Between two checkpoints of a prompt lie at least so many tokens, except behind its first chunk and at its last block
// end: many small chunks would fill the cache with states.
constexpr int32_t kCheckpointDistance = 256;

}  // namespace

KvCacheManager::KvCacheManager(const KvCacheSpec& spec, const Limits& limits)
    : enable_prefix_caching_(limits.enable_prefix_caching),
      lookahead_(limits.lookahead),
      token_pages_(limits.token_pages),
      pool_(spec.num_blocks, limits.fence_freed_blocks),
      pages_(limits.token_pages.num_pages) {
  WR_CHECK(!spec.groups.empty());
  for (const KvGroupSpec& group : spec.groups) {
    auto known = std::find(block_sizes_.begin(), block_sizes_.end(), group.block_size);
    const auto chain = static_cast<int32_t>(known - block_sizes_.begin());
    if (known == block_sizes_.end()) {
      block_sizes_.push_back(group.block_size);
    }
    groups_.push_back({make_kv_policy(group, {limits.max_step_tokens, limits.max_row_len}),
                       group.block_size,
                       chain,
                       group.state_pages});
    if (group.state_pages > 0) {
      num_state_pages_ += group.state_pages;
      checkpoint_unit_ = group.block_size;
    }
    alignment_ = std::lcm(alignment_, group.block_size);
  }
  copies_tails_ = limits.enable_prefix_caching && limits.copies_blocks && groups_.size() == 1 &&
                  spec.groups.front().kind == KvKind::kFull;
  hits_.resize(groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    hits_[g].reserve(static_cast<size_t>(
        std::max(groups_[g].state_pages, ceil_div(limits.max_row_len, groups_[g].block_size))));
  }
}

int32_t KvCacheManager::max_blocks_for(int32_t num_tokens) const {
  int64_t blocks = 0;
  for (const Group& group : groups_) {
    blocks += group.state_pages > 0
                  ? group.policy->max_blocks()
                  : std::min(ceil_div(num_tokens, group.block_size), group.policy->max_blocks());
  }
  return static_cast<int32_t>(std::min<int64_t>(blocks, RequestKv::kNever));
}

void KvCacheManager::init(RequestKv& kv, const BlockHashKeys& keys, int32_t num_tokens) const {
  kv.keys = keys;
  kv.pages.reserve(static_cast<size_t>(token_pages_.pages_for(num_tokens)));
  kv.tables.resize(groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    kv.tables[g].blocks.reserve(static_cast<size_t>(
        std::max(3 * groups_[g].state_pages, ceil_div(num_tokens, groups_[g].block_size))));
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

CachedBlocks KvCacheManager::cached(const RequestKv& kv, size_t group) const {
  return {pool_, kv.chains[static_cast<size_t>(groups_[group].chain)], static_cast<int32_t>(group)};
}

int32_t KvCacheManager::aligned_hit(const RequestKv& kv, size_t group, int32_t limit) const {
  return groups_[group].policy->longest_hit(cached(kv, group), limit) / alignment_ * alignment_;
}

int32_t KvCacheManager::find_prefix(RequestKv& kv,
                                    std::span<const TokenId> tokens,
                                    int32_t max_tokens) {
  tail_ = kNullBlock;
  if (!enable_prefix_caching_) {
    return 0;
  }
  extend_chains(kv, tokens);
  shared_prefix_ = 0;
  int32_t hit = max_tokens / alignment_ * alignment_;
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].policy->hits_may_be_cut()) {
      hit = aligned_hit(kv, g, hit);
    }
  }
  shared_prefix_ = num_state_pages_ > 0 ? hit : 0;
  // The hits of other groups may not be cut: shrink until all groups agree.
  for (bool agreed = false; !agreed;) {
    agreed = true;
    for (size_t g = 0; g < groups_.size(); ++g) {
      const int32_t boundary = groups_[g].policy->hits_may_be_cut() ? hit : aligned_hit(kv, g, hit);
      agreed = agreed && boundary == hit;
      hit = boundary;
    }
  }
  collect_hits(kv, hit);
  return hit + find_tail(kv, tokens, hit, max_tokens);
}

// How many tokens behind the prefix a partly filled block has. That block is needed beside those of the request until
// its copy is planned.
int32_t KvCacheManager::find_tail(const RequestKv& kv,
                                  std::span<const TokenId> tokens,
                                  int32_t num_hit,
                                  int32_t max_tokens) {
  if (!kv.copies_tail || free_blocks_to_admit(num_of(tokens)) >= pool_.num_free()) {
    return 0;
  }
  const int32_t most = std::min(groups_.front().block_size - 1, max_tokens - num_hit);
  for (int32_t count = most; count > 0; --count) {
    tail_ = pool_.find(tail_hash(kv, tokens, num_hit, count), 0);
    if (tail_ != kNullBlock) {
      return count;
    }
  }
  return 0;
}

// The hash of a block that holds `count` tokens from `begin` on, where the block begins.
BlockHash KvCacheManager::tail_hash(const RequestKv& kv,
                                    std::span<const TokenId> tokens,
                                    int32_t begin,
                                    int32_t count) const {
  const int32_t block = begin / groups_.front().block_size;
  const BlockHash parent =
      block == 0 ? BlockHash{} : kv.chains.front()[static_cast<size_t>(block) - 1];
  return hash_block(
      parent, tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(count)), kv.keys);
}

void KvCacheManager::cache_tail(RequestKv& kv,
                                std::span<const TokenId> tokens,
                                int32_t num_confirmed) {
  const int32_t block_size = groups_.front().block_size;
  const int32_t count = num_confirmed % block_size;
  if (!kv.copies_tail || count == 0) {
    return;
  }
  const int32_t begin = num_confirmed - count;
  extend_chains(kv, tokens);
  pool_.set_hash(kv.tables.front().blocks[static_cast<size_t>(begin / block_size)],
                 tail_hash(kv, tokens, begin, count),
                 0);
}

void KvCacheManager::collect_hits(const RequestKv& kv, int32_t num_hit) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    const int32_t blocks = num_hit / group.block_size;
    if (group.state_pages > 0) {
      hits_[g].clear();
      for (int32_t page = 0; page < group.state_pages && blocks > 0; ++page) {
        hits_[g].push_back(cached(kv, g).find_page(blocks - 1, page));
      }
      continue;
    }
    const int32_t seen = group.policy->num_seen_blocks(blocks);
    hits_[g].clear();
    for (int32_t i = 0; i < blocks; ++i) {
      hits_[g].push_back(i < blocks - seen ? kNullBlock : cached(kv, g).find(i));
    }
  }
}

// Free blocks that a request needs for its prefix hit and, in time, for all of its known tokens.
int32_t KvCacheManager::free_blocks_to_admit(int32_t num_known) const {
  int64_t needed = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const std::vector<BlockId>& hits = hits_[g];
    const auto skipped = static_cast<int32_t>(std::count(hits.begin(), hits.end(), kNullBlock));
    const int32_t held = std::min(ceil_div(room_of(num_known), groups_[g].block_size) - skipped,
                                  groups_[g].policy->max_blocks());
    needed += groups_[g].state_pages > 0 ? groups_[g].state_pages
                                         : std::max(0, held - (num_of(hits) - skipped));
    // A cached block without references counts as free until the hit takes it.
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
  if (free_blocks_to_admit(admission.num_known) > pool_.num_free() ||
      lacks_pages(kv, admission.num_known)) {
    return false;
  }
  for (const std::vector<BlockId>& hits : hits_) {
    for (const BlockId block : hits) {
      if (block != kNullBlock) {
        pool_.touch(block);
      }
    }
  }
  if (tail_ != kNullBlock) {
    pool_.touch(tail_);
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].state_pages > 0) {
      enter_states(kv, g);
      continue;
    }
    RequestKv::Table& table = kv.tables[g];
    table.blocks.assign(hits_[g].begin(), hits_[g].end());
    table.num_cached = num_of(hits_[g]);
    table.num_dropped =
        static_cast<int32_t>(std::count(hits_[g].begin(), hits_[g].end(), kNullBlock));
    append_blocks(kv, g, admission.num_tokens);
    emit(kv, g, 0, admission.row, out);
  }
  if (tail_ != kNullBlock) {
    const std::vector<BlockId>& blocks = kv.tables.front().blocks;
    out.block_copies.push_back({0, tail_, blocks[hits_.front().size()]});
    pool_.release(std::exchange(tail_, kNullBlock), out.step);
  }
  append_pages(kv, admission.num_known, admission.row, out);
  if (num_state_pages_ > 0) {
    kv.prefill_len = admission.num_known;
    kv.checkpoint_at = -kCheckpointDistance;
    kv.loans_on_row = true;  // cells of another request
    plan_states(kv, admission.num_hit, admission.num_tokens, admission.row, out);
  }
  refresh_marks(kv);
  return true;
}

// Gives the request pages for its state, and the pages of the state that the prefix found ends with.
void KvCacheManager::enter_states(RequestKv& kv, size_t group) {
  RequestKv::Table& table = kv.tables[group];
  const auto pages = static_cast<size_t>(groups_[group].state_pages);
  table.blocks.assign(3 * pages, kNullBlock);
  for (size_t i = 0; i < pages; ++i) {
    table.blocks[i] = pool_.take();
  }
  std::copy(hits_[group].begin(),
            hits_[group].end(),
            table.blocks.begin() + static_cast<std::ptrdiff_t>(2 * pages));
  table.num_cached = table.num_dropped = 0;
  kv.has_loans = kv.has_loans || !hits_[group].empty();
}

// Whether a step leaves a checkpoint at the last block end before its last token. That may be where it starts.
bool KvCacheManager::leaves_checkpoint(const RequestKv& kv,
                                       int32_t num_computed,
                                       int32_t num_tokens) const {
  const int32_t at = last_block_end(num_tokens);
  const bool starts_there = at == num_computed;  // from a state of its own
  if (!enable_prefix_caching_ || num_tokens > kv.prefill_len || at < num_computed || at == 0 ||
      (starts_there && kv.has_loans) || at % alignment_ != 0 ||
      pool_.num_free() < num_state_pages_) {
    return false;
  }
  return at == last_block_end(kv.prefill_len) || at - kv.checkpoint_at >= kCheckpointDistance;
}

// Prepares the tables of state groups for a step that computes the tokens [num_computed, num_tokens).
void KvCacheManager::plan_states(
    RequestKv& kv, int32_t num_computed, int32_t num_tokens, RowId row, SchedulerOutput& out) {
  const bool leaves = leaves_checkpoint(kv, num_computed, num_tokens);
  if (leaves) {
    kv.checkpoint_at = last_block_end(num_tokens);
    kv.leaves_start = kv.checkpoint_at == num_computed;
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    const auto pages = static_cast<size_t>(groups_[g].state_pages);
    std::vector<BlockId>& blocks = kv.tables[g].blocks;
    for (size_t i = 0; i < pages && leaves; ++i) {
      if (kv.leaves_start) {  // the state of now is the checkpoint, and the next one takes other pages
        blocks[2 * pages + i] = std::exchange(blocks[i], pool_.take());
      } else {
        blocks[pages + i] = pool_.take();
      }
    }
    if (pages > 0 && (leaves || kv.loans_on_row)) {
      emit(kv, g, 0, row, out);
    }
  }
  kv.has_loans = kv.has_loans || leaves;
  kv.loans_on_row = kv.has_loans;
  kv.states_until = num_tokens <= kv.prefill_len ? num_tokens : RequestKv::kNever;
}

void KvCacheManager::return_loans(RequestKv& kv, int64_t step) {
  if (!kv.has_loans) {
    return;
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    std::vector<BlockId>& blocks = kv.tables[g].blocks;
    const auto pages = static_cast<size_t>(group.state_pages);
    for (size_t i = pages; i < 3 * pages; ++i) {
      if (blocks[i] == kNullBlock) {
        continue;
      }
      if (i < 2 * pages || kv.leaves_start) {
        const std::vector<BlockHash>& chain = kv.chains[static_cast<size_t>(group.chain)];
        pool_.set_hash(
            blocks[i],
            chain[static_cast<size_t>(kv.checkpoint_at / group.block_size - 1)],
            CachedBlocks::page_key(static_cast<int32_t>(g), static_cast<int32_t>(i % pages)));
      }
      pool_.release(blocks[i], step);
      blocks[i] = kNullBlock;
    }
  }
  kv.has_loans = kv.leaves_start = false;
}

bool KvCacheManager::lacks_blocks(const RequestKv& kv, int32_t num_tokens) const {
  int32_t needed = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].state_pages > 0) {
      continue;
    }
    needed += std::max(
        0, ceil_div(room_of(num_tokens), groups_[g].block_size) - num_of(kv.tables[g].blocks));
  }
  return needed > pool_.num_free();
}

int32_t KvCacheManager::pages_to_grow(const RequestKv& kv, int32_t num_tokens) const {
  return std::max(0, token_pages_.pages_for(room_of(num_tokens)) - num_of(kv.pages));
}

bool KvCacheManager::lacks_pages(const RequestKv& kv, int32_t num_tokens) const {
  return pages_to_grow(kv, num_tokens) > pages_.num_free();
}

bool KvCacheManager::waits_for_steps(const RequestKv& kv, int32_t num_tokens) const {
  return (!lacks_blocks(kv, num_tokens) || pool_.num_fenced() > 0) &&
         (!lacks_pages(kv, num_tokens) || pages_.num_fenced() > 0);
}

bool KvCacheManager::grow(RequestKv& kv, int32_t num_tokens, RowId row, SchedulerOutput& out) {
  if (lacks_blocks(kv, num_tokens) || lacks_pages(kv, num_tokens)) {
    return false;
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].state_pages > 0) {
      continue;
    }
    const size_t start = kv.tables[g].blocks.size();
    append_blocks(kv, g, num_tokens);
    emit(kv, g, start, row, out);
  }
  append_pages(kv, num_tokens, row, out);
  if (num_tokens > kv.states_until) {
    plan_states(kv, kv.states_until, num_tokens, row, out);
  }
  refresh_marks(kv);
  return true;
}

void KvCacheManager::append_blocks(RequestKv& kv, size_t group, int32_t num_tokens) {
  std::vector<BlockId>& blocks = kv.tables[group].blocks;
  const int32_t wanted = ceil_div(room_of(num_tokens), groups_[group].block_size);
  while (num_of(blocks) < wanted) {
    blocks.push_back(pool_.take());
  }
}

void KvCacheManager::append_pages(RequestKv& kv,
                                  int32_t num_tokens,
                                  RowId row,
                                  SchedulerOutput& out) {
  const int32_t count = pages_to_grow(kv, num_tokens);
  if (count == 0) {
    return;
  }
  out.page_appends.push_back({row, num_of(kv.pages), {num_of(out.page_ids), count}});
  for (int32_t i = 0; i < count; ++i) {
    kv.pages.push_back(pages_.take());
    out.page_ids.push_back(kv.pages.back());
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
  // The last position is reserved for the token that is sampled after the computed ones.
  int32_t room = num_of(kv.pages) * token_pages_.page_size - 1;
  kv.window_at = kv.cache_at = RequestKv::kNever;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    if (group.state_pages > 0) {
      continue;
    }
    const RequestKv::Table& table = kv.tables[g];
    room = std::min(room, num_of(table.blocks) * group.block_size);
    kv.window_at = std::min(kv.window_at, group.policy->passed_at(table.num_dropped));
    if (enable_prefix_caching_) {
      kv.cache_at = std::min(kv.cache_at, (table.num_cached + 1) * group.block_size);
    }
  }
  kv.capacity = std::min(room - lookahead_, kv.states_until);
}

void KvCacheManager::drop_outside_windows(RequestKv& kv, int32_t num_computed, int64_t last_step) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    RequestKv::Table& table = kv.tables[g];
    const int32_t passed = groups_[g].policy->num_passed_blocks(num_computed);
    for (int32_t i = passed - 1; i >= table.num_dropped; --i) {
      pool_.release(table.blocks[static_cast<size_t>(i)], last_step);
      table.blocks[static_cast<size_t>(i)] = kNullBlock;
    }
    table.num_dropped = std::max(table.num_dropped, passed);
  }
  refresh_marks(kv);
}

void KvCacheManager::cache_full_blocks(RequestKv& kv,
                                       std::span<const TokenId> tokens,
                                       int32_t num_confirmed) {
  extend_chains(kv, tokens);
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].state_pages > 0) {
      continue;  // return_loans puts checkpoints into the prefix cache
    }
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
  pages_.release(kv.pages, last_step);
  kv.pages.clear();
  kv.capacity = 0;
  kv.states_until = RequestKv::kNever;
  kv.has_loans = kv.leaves_start = false;
  kv.window_at = kv.cache_at = RequestKv::kNever;
}

}  // namespace warprow
