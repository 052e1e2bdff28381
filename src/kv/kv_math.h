// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/math.h"
#include "kv/kv_spec.h"

#include <algorithm>
#include <cstdint>
#include <span>

// Arithmetic over KV blocks that scheduler, memory plan and runner must agree on. Pure functions;
// tokens and blocks are counts >= 0, block sizes > 0.
namespace warprow {

// Blocks of the plan that fit in `kv_bytes`, the null block included.
[[nodiscard]] inline int64_t num_blocks_in(int64_t kv_bytes, const KvCacheSpec& spec) {
  const int64_t block_bytes = spec.block_bytes();
  return block_bytes > 0 ? kv_bytes / block_bytes : 0;
}

// Width of a row's block table: ceil(L / bs), rounded up to a multiple of 128 / bs for blocks of up
// to 128 tokens, so that a table always covers whole tiles of 128 tokens.
[[nodiscard]] constexpr int32_t max_blocks_per_row(int32_t max_model_len, int32_t block_size) {
  const int32_t blocks = ceil_div(max_model_len, block_size);
  return block_size <= 128 ? round_up(blocks, 128 / block_size) : blocks;
}

// How far a row's steps may run past its end: by the drafts of the steps in flight, since the host learns of
// accepted drafts late. Those tokens are dropped. lookahead: positions behind a step's tokens that a proposer with keys
// and values of its own writes.
[[nodiscard]] constexpr int32_t draft_overhang(int32_t max_steps_in_flight,
                                               int32_t num_drafts,
                                               int32_t lookahead) {
  return max_steps_in_flight * num_drafts + lookahead;
}

// The first token that the query at position `num_computed` can still see through a window of `window` tokens
// (itself included); neither it nor any later query sees earlier tokens.
[[nodiscard]] constexpr int32_t first_token_in_window(int32_t num_computed, int32_t window) {
  return num_computed - window + 1 > 0 ? num_computed - window + 1 : 0;
}

// Consecutive cached blocks that a hit needs before its boundary, for the next query's window.
[[nodiscard]] constexpr int32_t window_hit_blocks(int32_t window, int32_t block_size) {
  return ceil_div(window - 1, block_size);
}

// The most blocks a row of a window group ever holds, when at most `max_step_tokens` enter in one
// step: the tokens of the step, the window before them, and one block for misalignment.
[[nodiscard]] constexpr int32_t max_window_blocks(int32_t window,
                                                  int32_t max_step_tokens,
                                                  int32_t max_model_len,
                                                  int32_t block_size) {
  const int64_t tokens = int64_t{window} - 1 + max_step_tokens;
  const int64_t seen = tokens < max_model_len ? tokens : max_model_len;
  return static_cast<int32_t>(ceil_div(seen, int64_t{block_size})) + 1;
}

// The most blocks that a row of a state group needs: of its own state, and of a cached one that it starts from.
[[nodiscard]] constexpr int32_t max_state_blocks(const KvGroupSpec& group) {
  return 2 * group.state_pages;
}

// The most blocks that a request of this many tokens holds at once, when at most max_step_tokens enter in one step.
[[nodiscard]] inline int64_t blocks_of_request(std::span<const KvGroupSpec> groups,
                                               int64_t tokens,
                                               int32_t max_step_tokens) {
  int64_t sum = 0;
  for (const KvGroupSpec& group : groups) {
    if (group.kind == KvKind::kState) {
      sum += max_state_blocks(group);
      continue;
    }
    const int64_t blocks = ceil_div(tokens, int64_t{group.block_size});
    const bool slides = group.kind == KvKind::kSlidingWindow;
    sum += slides
               ? std::min<int64_t>(
                     blocks,
                     max_window_blocks(group.window, max_step_tokens, INT32_MAX, group.block_size))
               : blocks;
  }
  return sum;
}

// The longest request that the pool can hold alone, in tokens; INT32_MAX if windows bound its blocks at any length.
[[nodiscard]] inline int64_t max_tokens_held(const KvCacheSpec& spec, int32_t max_step_tokens) {
  const int64_t blocks = spec.num_blocks - 1;  // without the null block
  int64_t held = 0;                            // fits; beyond does not
  int64_t beyond = int64_t{INT32_MAX} + 1;
  while (beyond - held > 1) {
    const int64_t middle = held + (beyond - held) / 2;
    (blocks_of_request(spec.groups, middle, max_step_tokens) <= blocks ? held : beyond) = middle;
  }
  return held;
}

}  // namespace warprow
