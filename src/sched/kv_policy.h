// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"
#include "kv/block_hash.h"
#include "kv/kv_spec.h"
#include "sched/block_pool.h"

#include <cstdint>
#include <memory>
#include <span>

namespace warprow {

// The blocks of one request and KV group that the prefix cache holds, found by hash.
class CachedBlocks {
 public:
  CachedBlocks(const BlockPool& pool, std::span<const BlockHash> names, int32_t group)
      : pool_(pool), names_(names), group_(group) {}
  // The key that tells page `page` of a state apart from blocks and pages of equal hash; page 0 has the group's own.
  static constexpr int32_t page_key(int32_t group, int32_t page) {
    return group + page * kMaxKvGroups;
  }
  // The cached block with the content of the request's block `block_idx`; the null block if there is none.
  [[nodiscard]] BlockId find(int32_t block_idx) const { return find_page(block_idx, 0); }
  // The same of page `page` of the state behind that block.
  [[nodiscard]] BlockId find_page(int32_t block_idx, int32_t page) const {
    return pool_.find(names_[static_cast<size_t>(block_idx)], page_key(group_, page));
  }

 private:
  const BlockPool& pool_;
  std::span<const BlockHash> names_;
  int32_t group_;
};

// What one kind of KV group keeps of a request, and where a cached prefix of it may end. Counts are
// tokens unless they say blocks.
//
// Invariant: stateless; equal arguments give equal results.
class KvPolicy {
 public:
  virtual ~KvPolicy() = default;

  // The most blocks a request ever holds at once, however long it is.
  [[nodiscard]] virtual int32_t max_blocks() const = 0;

  // The longest prefix of at most `limit` tokens after which the next query finds everything that it sees. A
  // multiple of the block size, or `limit`.
  [[nodiscard]] virtual int32_t longest_hit(const CachedBlocks& cached, int32_t limit) const = 0;
  // Whether a hit may be cut at any block boundary and stays a hit.
  [[nodiscard]] virtual bool hits_may_be_cut() const = 0;
  // How many of a hit's last blocks the next query sees.
  [[nodiscard]] virtual int32_t num_seen_blocks(int32_t num_hit_blocks) const = 0;

  // How many leading blocks no query from position num_computed on sees.
  [[nodiscard]] virtual int32_t num_passed_blocks(int32_t num_computed) const = 0;
  // The number of computed tokens from which on block `block_idx` is passed; the largest int32 if never.
  [[nodiscard]] virtual int32_t passed_at(int32_t block_idx) const = 0;
};

// The most tokens of one step and of one request.
struct KvPolicyLimits {
  int32_t max_step_tokens = 0;
  int32_t max_model_len = 0;
};

// The policy for a group's kind. A check fails for a kind without one.
std::unique_ptr<const KvPolicy> make_kv_policy(const KvGroupSpec& group,
                                               const KvPolicyLimits& limits);

}  // namespace warprow
