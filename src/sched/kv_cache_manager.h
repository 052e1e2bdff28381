// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"
#include "kv/block_hash.h"
#include "kv/kv_spec.h"
#include "kv/token_pages.h"
#include "sched/block_pool.h"
#include "sched/kv_policy.h"
#include "sched/page_pool.h"
#include "wire/scheduler_output.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

namespace warprow {

// One request's part of the KV cache and of the token pool: a block table for each group, the hashes of its full
// blocks, and its pages. Plain data that KvCacheManager reads and writes.
struct RequestKv {
  static constexpr int32_t kNever = std::numeric_limits<int32_t>::max();

  struct Table {
    // [tokens / block size]; null where a window has passed or a hit skipped. Of a state group: the pages of the
    // request's state, of the checkpoint that its step in planning leaves, and of the cached state that it starts from.
    std::vector<BlockId> blocks;
    int32_t num_cached = 0;   // leading blocks already offered to the prefix cache
    int32_t num_dropped = 0;  // leading null blocks: passed by a window or skipped by a hit
  };

  // The step loop compares these three numbers and touches the tables only when one of them is
  // reached.
  int32_t capacity =
      0;  // tokens that the blocks of every group, and the pages, can hold beside the lookahead
  int32_t window_at = kNever;     // computed tokens at which the next block leaves a window
  int32_t cache_at = kNever;      // confirmed tokens at which the next block is full
  int32_t states_until = kNever;  // computed tokens for which the tables of state groups are right
  int32_t checkpoint_at = 0;      // tokens before the last checkpoint that it left
  int32_t prefill_len = 0;        // at admission
  bool has_loans = false;         // its tables name a checkpoint, or a state to start from
  bool leaves_start = false;      // the state that the step starts from is the checkpoint
  bool loans_on_row = false;      // the row's cells name some that may be given back
  bool copies_tail = false;       // see KvCacheManager::copies_tails()
  BlockHashKeys keys;
  std::vector<Table> tables;  // by group
  // By distinct block size: hashes of the full blocks of known tokens.
  std::vector<std::vector<BlockHash>> chains;
  std::vector<PageId> pages;  // of the request's tokens, in their order
};

// Allocates blocks and token pages to requests, finds cached prefixes, and releases blocks that a window has
// passed. KvPolicy implements what differs between kinds of KV group. A request may have more tokens than blocks of
// its own can hold: a window has passed some, and others lie in shared blocks.
//
// A state group keeps one state of a request. A chunk of a prefill may leave a checkpoint at its last block end, whose
// pages enter the prefix cache under the hash of the tokens before it; a request that hits it reads them in its first
// step and writes its own.
//
// A request with copies_tail leaves its last, partly filled block in the prefix cache too, at its end. Another such
// request that goes on from there begins with a copy, since it writes into the rest of the block.
//
// A block enters the prefix cache when it is full and its tokens are confirmed (known to the host
// and at least scheduled to be computed, for the last time). Rules: facts of the V2 design, sections 7.2 and 7.3.
//
// Owns: the block pool and the page pool. Requests' tables belong to the requests.
// Thread: one, the scheduler's.
// Invariant: a table holds a reference to each of its non-null blocks; shared blocks are full and
// hashed.
class KvCacheManager {
 public:
  struct Limits {
    int32_t max_step_tokens = 0;
    int32_t max_row_len = 0;  // of a request, drafts in flight included
    TokenPages token_pages;
    bool enable_prefix_caching = true;
    bool fence_freed_blocks = false;
    bool copies_blocks = false;  // the workers can copy blocks
    int32_t lookahead =
        0;  // places behind all others of a request, for keys and values of its drafter
  };

  // What admit() needs to give a request its row.
  struct Admission {
    RowId row = kNoRow;
    int32_t num_hit = 0;     // tokens of the prefix that find_prefix() found
    int32_t num_tokens = 0;  // that need blocks by the end of the first step, the hit included
    int32_t num_known = 0;   // that all of its prefill needs blocks for
  };

  KvCacheManager(const KvCacheSpec& spec, const Limits& limits);

  [[nodiscard]] bool has_states() const { return num_state_pages_ > 0; }
  // Whether RequestKv::copies_tail may be set: with one group that attends to all tokens.
  [[nodiscard]] bool copies_tails() const { return copies_tails_; }
  // The most blocks a request ever holds at once while its length grows to num_tokens.
  [[nodiscard]] int32_t max_blocks_for(int32_t num_tokens) const;

  // Prepares an empty RequestKv with room for num_tokens, so that nothing is allocated later.
  void init(RequestKv& kv, const BlockHashKeys& keys, int32_t num_tokens) const;

  // Longest prefix of at most max_tokens tokens that is cached in all groups, in tokens; 0 without a prefix cache. With
  // copies_tail it may end within a block.
  // The blocks found are kept for an admit() that follows at once.
  int32_t find_prefix(RequestKv& kv, std::span<const TokenId> tokens, int32_t max_tokens);
  // Tokens of the prefix just found that groups of blocks have cached, and perhaps state groups not: where a checkpoint
  // would serve the next request with this prefix.
  [[nodiscard]] int32_t shared_prefix() const { return shared_prefix_; }
  // Tokens of a chunk behind that prefix which make it leave a checkpoint there.
  [[nodiscard]] int32_t checkpoint_unit() const { return checkpoint_unit_; }

  // Takes the prefix just found, blocks for the first chunk and pages for all known tokens, and appends them to
  // `out`. Returns false and changes nothing unless blocks and pages for all known tokens are free now.
  bool admit(RequestKv& kv, const Admission& admission, SchedulerOutput& out);

  // Makes room for num_tokens and appends the new blocks and pages to `out`. Returns false and changes nothing if
  // too few are free.
  bool grow(RequestKv& kv, int32_t num_tokens, RowId row, SchedulerOutput& out);
  // Whether what grow() lacks may become free by itself: some was released and is fenced until the steps in flight
  // end.
  [[nodiscard]] bool waits_for_steps(const RequestKv& kv, int32_t num_tokens) const;

  // Releases blocks that no query from position num_computed on can see.
  void drop_outside_windows(RequestKv& kv, int32_t num_computed, int64_t last_step);

  // Enters into the prefix cache the full blocks among the first num_confirmed tokens.
  void cache_full_blocks(RequestKv& kv, std::span<const TokenId> tokens, int32_t num_confirmed);

  // At a request's end: enters its last block, of which num_confirmed tokens are final, with copies_tail.
  void cache_tail(RequestKv& kv, std::span<const TokenId> tokens, int32_t num_confirmed);

  // After a step is planned: enters the checkpoint that it leaves into the prefix cache. Then releases the pages of that
  // checkpoint, and those of the cached state that the step starts from.
  void return_loans(RequestKv& kv, int64_t step);

  // Releases everything, the last block first, so that a prefix stays cached longer than its continuations.
  void release(RequestKv& kv, int64_t last_step);

  void complete(int64_t step) {
    pool_.complete(step);
    pages_.complete(step);
  }
  // How often blocks or pages became available. A request refused for lack of them need not retry before this
  // grows.
  [[nodiscard]] int64_t num_changes() const { return pool_.num_changes() + pages_.num_changes(); }
  // Empties the prefix cache. No request may hold a block.
  void forget_prefixes() { pool_.forget_contents(); }
  [[nodiscard]] const BlockPool& pool() const { return pool_; }
  [[nodiscard]] const PagePool& pages() const { return pages_; }

 private:
  struct Group {
    std::unique_ptr<const KvPolicy> policy;
    int32_t block_size = 0;
    int32_t chain = 0;        // index of its block size among the distinct ones
    int32_t state_pages = 0;  // of a state group; else 0
  };

  void extend_chains(RequestKv& kv, std::span<const TokenId> tokens) const;
  [[nodiscard]] CachedBlocks cached(const RequestKv& kv, size_t group) const;
  // The longest hit of one group, rounded down to a multiple of alignment_.
  [[nodiscard]] int32_t aligned_hit(const RequestKv& kv, size_t group, int32_t limit) const;
  void collect_hits(const RequestKv& kv, int32_t num_hit);
  int32_t find_tail(const RequestKv& kv,
                    std::span<const TokenId> tokens,
                    int32_t num_hit,
                    int32_t max_tokens);
  [[nodiscard]] BlockHash tail_hash(const RequestKv& kv,
                                    std::span<const TokenId> tokens,
                                    int32_t begin,
                                    int32_t count) const;
  [[nodiscard]] int32_t free_blocks_to_admit(int32_t num_known) const;
  [[nodiscard]] bool lacks_blocks(const RequestKv& kv, int32_t num_tokens) const;
  [[nodiscard]] bool lacks_pages(const RequestKv& kv, int32_t num_tokens) const;
  [[nodiscard]] int32_t pages_to_grow(const RequestKv& kv, int32_t num_tokens) const;
  void append_blocks(RequestKv& kv, size_t group, int32_t num_tokens);
  void enter_states(RequestKv& kv, size_t group);
  void plan_states(
      RequestKv& kv, int32_t num_computed, int32_t num_tokens, RowId row, SchedulerOutput& out);
  [[nodiscard]] int32_t last_block_end(int32_t num_tokens) const {
    return (num_tokens - 1) / checkpoint_unit_ * checkpoint_unit_;
  }
  [[nodiscard]] bool leaves_checkpoint(const RequestKv& kv,
                                       int32_t num_computed,
                                       int32_t num_tokens) const;
  // Places that a request of so many tokens needs.
  [[nodiscard]] int32_t room_of(int32_t num_tokens) const { return num_tokens + lookahead_; }
  void append_pages(RequestKv& kv, int32_t num_tokens, RowId row, SchedulerOutput& out);
  static void emit(
      const RequestKv& kv, size_t group, size_t start, RowId row, SchedulerOutput& out);
  void refresh_marks(RequestKv& kv) const;

  std::vector<Group> groups_;
  std::vector<int32_t> block_sizes_;  // distinct
  int32_t alignment_ = 1;             // least common multiple of the block sizes: hits end on it
  int32_t num_state_pages_ = 0;       // of a request's states, in all groups
  int32_t checkpoint_unit_ = 1;
  int32_t shared_prefix_ = 0;
  bool enable_prefix_caching_;
  int32_t lookahead_;
  bool copies_tails_ = false;
  TokenPages token_pages_;
  BlockPool pool_;
  PagePool pages_;
  // By group: the blocks of the last prefix found, null where a window skips them.
  std::vector<std::vector<BlockId>> hits_;
  BlockId tail_ = kNullBlock;  // the partly filled block behind that prefix, if it ends in one
};

}  // namespace warprow
