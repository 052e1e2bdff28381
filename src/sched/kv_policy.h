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

// The blocks of one request and KV group that the prefix cache holds, by their names.
class CachedBlocks {
 public:
  CachedBlocks(const BlockPool& pool, std::span<const BlockHash> names, int32_t group)
      : pool_(pool), names_(names), group_(group) {}
  // The block that holds block `block_idx` of the request; the null block: none.
  [[nodiscard]] BlockId find(int32_t block_idx) const {
    return pool_.find(names_[static_cast<size_t>(block_idx)], group_);
  }

 private:
  const BlockPool& pool_;
  std::span<const BlockHash> names_;
  int32_t group_;
};

// What one kind of KV group keeps of a request, and where a cached prefix of it may end. Counts are
// tokens unless they say blocks.
//
// Invariant: no state of its own; equal questions get equal answers.
class KvPolicy {
 public:
  virtual ~KvPolicy() = default;

  // The most blocks a request ever holds at once, however long it is.
  [[nodiscard]] virtual int32_t max_blocks() const = 0;

  // The longest prefix of at most `limit` tokens after which a query finds all it sees. Whole blocks,
  // or `limit`.
  [[nodiscard]] virtual int32_t longest_hit(const CachedBlocks& cached, int32_t limit) const = 0;
  // Whether what is found may be cut anywhere and is a hit still.
  [[nodiscard]] virtual bool hits_may_be_cut() const = 0;
  // Of a hit's blocks, those at its end that the next query sees.
  [[nodiscard]] virtual int32_t num_seen_blocks(int32_t num_hit_blocks) const = 0;

  // Leading blocks that no query from position num_computed on sees.
  [[nodiscard]] virtual int32_t num_passed_blocks(int32_t num_computed) const = 0;
  // The count of computed tokens from which block `block_idx` is passed; the largest int32: never.
  [[nodiscard]] virtual int32_t passed_at(int32_t block_idx) const = 0;
};

// The most tokens of one step and of one request.
struct KvPolicyLimits {
  int32_t max_step_tokens = 0;
  int32_t max_model_len = 0;
};

// The policy of a group's kind; full attention and sliding windows have one, and a check fails for
// the others.
std::unique_ptr<const KvPolicy> make_kv_policy(const KvGroupSpec& group,
                                               const KvPolicyLimits& limits);

}  // namespace warprow
