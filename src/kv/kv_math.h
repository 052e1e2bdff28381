// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/math.h"
#include "kv/kv_spec.h"

#include <algorithm>
#include <cstdint>

// Arithmetic over KV blocks that scheduler, memory plan and runner must agree on. Pure functions;
// tokens and blocks are counts >= 0, block sizes > 0.
namespace warprow {

// Blocks of the plan that fit in `kv_bytes`, the null block included.
[[nodiscard]] inline int64_t num_blocks_in(int64_t kv_bytes, const KvCacheSpec& spec) {
  const int64_t block_bytes = spec.block_bytes();
  return block_bytes > 0 ? kv_bytes / block_bytes : 0;
}

// The longest request that the pool holds alone, in tokens, when nothing leaves a window.
[[nodiscard]] inline int64_t max_tokens_held(const KvCacheSpec& spec) {
  const int64_t blocks = spec.num_blocks - 1;  // without the null block
  const auto needed = [&](int64_t tokens) {
    int64_t sum = 0;
    for (const KvGroupSpec& group : spec.groups) {
      sum += ceil_div(tokens, int64_t{group.block_size});
    }
    return sum;
  };
  int64_t held = 0;  // needed(held) <= blocks < needed(beyond)
  int64_t beyond = 1;
  for (const KvGroupSpec& group : spec.groups) {
    beyond = std::max(beyond, (blocks + 1) * group.block_size + 1);
  }
  while (beyond - held > 1) {
    const int64_t middle = held + (beyond - held) / 2;
    (needed(middle) <= blocks ? held : beyond) = middle;
  }
  return held;
}

// Width of a row's block table: ceil(L / bs), rounded up to a multiple of 128 / bs for blocks of up
// to 128 tokens, so that a table always covers whole tiles of 128 tokens.
[[nodiscard]] constexpr int32_t max_blocks_per_row(int32_t max_model_len, int32_t block_size) {
  const int32_t blocks = ceil_div(max_model_len, block_size);
  return block_size <= 128 ? round_up(blocks, 128 / block_size) : blocks;
}

// The first token that the query at position `num_computed` can still see through a window of
// `window` tokens (itself included); everything below is dead to it and to all later queries.
[[nodiscard]] constexpr int32_t first_token_in_window(int32_t num_computed, int32_t window) {
  return num_computed - window + 1 > 0 ? num_computed - window + 1 : 0;
}

// Cached blocks in a row that a hit needs before its boundary, for the next query's window.
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

}  // namespace warprow
