// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sample/draw_cuda.cuh"

#include <cstdint>

namespace warprow::cuda {

// Log-probabilities of the raw logits, for chosen ids only; by one block.

// How many logits are at least the token's, itself included.
__device__ inline int32_t token_rank(FinishShared& shared, const SearchRow& raw, int32_t token) {
  if (threadIdx.x == 0) {
    shared.rank = 0;
  }
  __syncthreads();
  int32_t mine = 0;
  for_each_at_least(raw, raw.logits.x[token], [&](float, int32_t) { ++mine; });
  mine = __reduce_add_sync(~0U, mine);
  if (threadIdx.x % 32 == 0) {
    atomicAdd(&shared.rank, mine);
  }
  __syncthreads();
  return shared.rank;
}

// The k likeliest tokens, most likely first, lowest id first at ties. Columns from the row's end on
// are left as they are.
__device__ inline void top_logprobs(SearchShared& search,
                                    const SearchRow& raw,
                                    double lse,
                                    int32_t k,
                                    int32_t* ids,
                                    float* logprobs) {
  k = min(k, raw.logits.vocab);
  if (k <= 0) {
    return;
  }
  const float lower = k <= kFinishThreads / 2 ? value_reached_by(raw, k) : -kInfinity;
  int32_t count = collect(search, raw, lower, [](float, TokenKey) { return true; });
  if (count > kMaxKeys) {
    constexpr float kSpan = 32.0F;
    const TokenKey limit = last_of(search,
                                   raw,
                                   last_key(lower, raw.logits.vocab),
                                   kSpan,
                                   CountWeight{},
                                   Target{static_cast<unsigned long long>(k), 1.0F});
    count =
        collect(search, raw, key_value(limit), [&](float, TokenKey key) { return key <= limit; });
  }
  sort_keys(search, count);
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < min(k, count); i += kFinishThreads) {
    ids[i] = key_id(search.keys[i]);
    logprobs[i] = static_cast<float>(static_cast<double>(key_value(search.keys[i])) - lse);
  }
}

}  // namespace warprow::cuda
