// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sample/cuda/sample_row.cuh"
#include "kernels/sample/rules/bad_words.h"

#include <cstdint>

namespace warprow::cuda {

// Applies the rules on tokens without a copy of the row. The CTA that has a tile in registers collects the
// rules for each of its tokens in an entry in shared memory. Prompt tokens are in host memory; prompt_mask
// turns them into a bit mask once for all tiles.

// Bits of an entry. The lower bits count outputs.
constexpr int32_t kMaskedBit = INT32_MIN;  // not allowed, completes a bad word, or a stop id
constexpr int32_t kBiasBit = 1 << 30;
constexpr int32_t kCountBits = kBiasBit - 1;

// Whether the rules of this row need its prompt.
__device__ inline bool needs_prompt(const SampleArgs& args, const RowPlan& plan) {
  return plan.penalties && args.params(plan.row).repetition_penalty != 1.0F;
}

// Calls f with the tokens at [begin, end), distributed over the CTA's threads.
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

// The entries of a tile's tokens; the tile begins at token `first`.
struct TileEntries {
  int32_t* entries;  // shared [kTileTokens]
  int32_t first;

  // The token's entry, or null if it is not in the tile. Ids may be outside the vocabulary.
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

// The row's lists. Precondition: the row has lists.
__device__ inline TokenListsView lists_of(const SampleArgs& args, const RowPlan& plan) {
  return token_lists_at(args.token_lists + plan.row * args.token_lists_stride);
}

// All threads of the CTA. Must run before the other rules, because it overwrites entries and they set bits.
__device__ inline void fill_allowed(const TokenListsView& lists, const TileEntries& tile) {
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < lists.num_allowed; i += kTileThreads) {
    if (int32_t* entry = tile.of(lists.allowed[i])) {
      *entry = 0;
    }
  }
  __syncthreads();
}

// Marks biased tokens and those that would complete a bad word; each thread checks every kTileThreads-th
// word. A word's length leads to the next word, so every thread walks the whole list.
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

// All threads of the CTA: fills entries [kTileTokens] in shared memory for the tile's tokens, from `first`
// on.
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

// The bias of a token that has one, by binary search: ids ascend.
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

// A logit under the rules on tokens. Masks come first in the rules' order, and the other rules keep -inf, so
// one mask test at the start is enough.
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
