// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sample/top_k_top_p_cuda.cuh"

#include <cstdint>

namespace warprow::cuda {

// Log-probabilities of the raw logits, for chosen ids only; by one block.

// How many logits are at least the token's, itself included.
__device__ inline int32_t token_rank(SearchShared& shared, const SearchRow& raw, int32_t token) {
  const float least = raw.logits.x[token];
  unsigned long long mine = 0;
  for_each_at_least(shared, raw, least, [&](float, int32_t) { ++mine; });
  return static_cast<int32_t>(block_sum(shared, mine));
}

// The k likeliest tokens, most likely first, lowest id first at ties. Columns from the row's end on
// are left as they are.
__device__ inline void top_logprobs(SearchShared& shared,
                                    const SearchRow& raw,
                                    double lse,
                                    int32_t k,
                                    int32_t* ids,
                                    float* logprobs) {
  k = min(k, raw.logits.vocab);
  if (k <= 0) {
    return;
  }
  int32_t count =
      collect(shared, raw, value_reached_by(shared, raw, k), [](TokenKey) { return true; });
  if (count > kMaxKeys) {
    const TokenKey last = kth_key(shared, raw, -kInfinity, k);
    count = collect(shared, raw, key_value(last), [&](TokenKey key) { return key <= last; });
  }
  sort_keys(shared, count);
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < min(k, count); i += kFinishThreads) {
    ids[i] = key_id(shared.keys[i]);
    logprobs[i] = static_cast<float>(static_cast<double>(key_value(shared.keys[i])) - lse);
  }
}

}  // namespace warprow::cuda
