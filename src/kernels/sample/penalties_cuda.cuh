// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sample/bad_words.h"
#include "kernels/sample/sample_row_cuda.cuh"

#include <cstdint>

namespace warprow::cuda {

// The rules on tokens without a copy of the row: the block that has a tile in registers notes for
// each of its tokens what the rules say, in an entry of shared memory. Prompt tokens, which lie in
// host memory, come as a bit mask that prompt_mask made once for all tiles.

// Bits of an entry; those below count outputs.
constexpr int32_t kMaskedBit = INT32_MIN;  // not allowed, completes a bad word, or stops too soon
constexpr int32_t kBiasBit = 1 << 30;
constexpr int32_t kCountBits = kBiasBit - 1;

// Whether the row's prompt matters.
__device__ inline bool needs_prompt(const SampleArgs& args, const RowPlan& plan) {
  return plan.penalties && args.params(plan.row).repetition_penalty != 1.0F;
}

// Calls f with the tokens at [begin, end), spread over the block's threads.
template <int32_t kThreads, typename F>
__device__ void for_each_token(const KnownTokens& tokens, int32_t begin, int32_t end, const F& f) {
  constexpr int32_t kBatch = 4;  // loads in flight
  for (int32_t first = begin + static_cast<int32_t>(threadIdx.x); first < end;
       first += kBatch * kThreads) {
    int32_t ids[kBatch];
#pragma unroll
    for (int32_t b = 0; b < kBatch; ++b) {
      const int32_t pos = first + b * kThreads;
      ids[b] = pos < end ? tokens.at(pos) : -1;
    }
#pragma unroll
    for (const int32_t id : ids) {
      f(id);
    }
  }
}

// The entries of a tile's tokens, from `first` on.
struct TileEntries {
  int32_t* entries;  // shared [kTileTokens]
  int32_t first;

  // The token's entry, or null if it is not the tile's: ids may be outside the vocabulary too.
  __device__ int32_t* of(int32_t token) const {
    const uint32_t at = static_cast<uint32_t>(token) - static_cast<uint32_t>(first);
    return at < static_cast<uint32_t>(kTileTokens) ? entries + at : nullptr;
  }
  __device__ void set(int32_t token, int32_t bit) const {
    if (int32_t* entry = of(token)) {
      atomicOr(entry, bit);
    }
  }
};

// The row's lists; only of one that has some.
__device__ inline TokenListsView lists_of(const SampleArgs& args, const RowPlan& plan) {
  return token_lists_at(args.token_lists + plan.row * args.token_lists_stride);
}

// All threads of the block. Allowed ids come before all else, which sets bits.
__device__ inline void fill_allowed(const TokenListsView& lists, const TileEntries& tile) {
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < lists.num_allowed; i += kTileThreads) {
    if (int32_t* entry = tile.of(lists.allowed[i])) {
      *entry = 0;
    }
  }
  __syncthreads();
}

// Biased tokens, and those that would complete a bad word: a thread for every kTileThreads-th word.
// The words' lengths lead from one to the next, so all threads walk the list.
__device__ inline void fill_lists(const TokenListsView& lists,
                                  const KnownTokens& tokens,
                                  const TileEntries& tile) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t i = thread; i < lists.num_biases; i += kTileThreads) {
    tile.set(lists.biases[2 * i], kBiasBit);
  }
  int32_t number = 0;
  for (int32_t at = 0; at < lists.bad_words_len; ++number) {
    const int32_t len = lists.bad_words[at];
    const int32_t* word = lists.bad_words + at + 1;
    if (number % kTileThreads == thread && tile.of(word[len - 1]) != nullptr &&
        would_complete(tokens, word, len)) {
      tile.set(word[len - 1], kMaskedBit);
    }
    at += 1 + len;
  }
}

// All threads of the block: fills entries [kTileTokens] in shared memory for tokens from `first`.
__device__ inline void fill_entries(const SampleArgs& args,
                                    const RowPlan& plan,
                                    int32_t first,
                                    int32_t* entries) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const TileEntries tile{entries, first};
  const TokenListsView lists = plan.lists ? lists_of(args, plan) : TokenListsView();
  const int32_t unnamed = lists.num_allowed > 0 ? kMaskedBit : 0;
  auto* const clear = reinterpret_cast<int4*>(entries);
  for (int32_t i = thread; i < kTileTokens / 4; i += kTileThreads) {
    clear[i] = int4{unnamed, unnamed, unnamed, unnamed};
  }
  __syncthreads();
  if (plan.lists) {
    fill_allowed(lists, tile);
    fill_lists(lists, known_tokens(args.tokens, plan.row, plan.position), tile);
  }
  if (plan.penalties) {
    const KnownTokens tokens = known_tokens(args.tokens, plan.row, plan.position);
    for_each_token<kTileThreads>(tokens, tokens.prompt_len, tokens.len, [&](int32_t id) {
      if (int32_t* entry = tile.of(id)) {
        atomicAdd(entry, 1);
      }
    });
  }
  if (plan.too_short) {
    const int32_t* stop_ids = args.stop_ids + plan.row * args.stop_ids_stride;
    for (int32_t i = thread; i < stop_ids[0]; i += kTileThreads) {
      tile.set(stop_ids[i + 1], kMaskedBit);
    }
  }
  __syncthreads();
}

// The bias of a token that has one: ids ascend, so half of them are ruled out by each look.
__device__ inline float bias_of(const TokenListsView& lists, int32_t token) {
  int32_t at = 0;
  for (int32_t end = lists.num_biases; end - at > 1;) {
    const int32_t middle = (at + end) / 2;
    const bool behind = lists.biases[2 * middle] > token;
    end = behind ? middle : end;
    at = behind ? at : middle;
  }
  return __int_as_float(lists.biases[2 * at + 1]);
}

// A logit under the rules on tokens. What masks comes first in their order, and -inf stays -inf
// under the others, so it can be put last.
__device__ inline float changed_logit(const SampleArgs& args,
                                      const RowPlan& plan,
                                      const SampleParams& params,
                                      float x,
                                      int32_t token,
                                      int32_t entry,
                                      bool in_prompt) {
  if ((entry & kMaskedBit) != 0) {
    return -kInfinity;
  }
  if ((entry & kBiasBit) != 0) {
    x += bias_of(lists_of(args, plan), token);
  }
  const int32_t count = entry & kCountBits;
  return plan.penalties && (count > 0 || in_prompt) ? penalized(x, params, count) : x;
}

}  // namespace warprow::cuda
