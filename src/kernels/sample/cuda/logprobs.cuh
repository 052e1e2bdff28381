// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sample/cuda/token_rules.cuh"
#include "kernels/sample/cuda/top_k_top_p.cuh"

#include <cstdint>

namespace warprow::cuda {

// Log-probabilities of a row, for chosen ids only, by one CTA. `lse` as in logprobs.h.

// The number of logits that are at least the token's, itself included.
__device__ inline int32_t token_rank(SearchShared& shared, const SearchRow& raw, int32_t token) {
  const float least = raw.logits.x[token];
  unsigned long long mine = 0;
  for_each_at_least(shared, raw, least, [&](float, int32_t) { ++mine; });
  return static_cast<int32_t>(block_sum(shared, mine));
}

// For a row with fewer than k tokens above -inf, whose keys are shared.keys[0, count): appends masked tokens
// (-inf) in ascending order of id. Ids below k are enough of them. Returns the number of keys.
__device__ inline int32_t add_masked(SearchShared& shared, const LogitRow& logits, int32_t k) {
  for (int32_t id = static_cast<int32_t>(threadIdx.x); id < k; id += kFinishThreads) {
    if (logits.x[id] == -kInfinity) {
      shared.keys[atomicAdd(&shared.num_keys, 1)] = token_key(-kInfinity, id);
    }
  }
  __syncthreads();
  return shared.num_keys;
}

// The k most likely tokens, most likely first, lowest id first at ties. Columns past the row's end get id -1
// and -inf.
__device__ inline void top_logprobs(SearchShared& shared,
                                    const SearchRow& raw,
                                    double lse,
                                    int32_t k,
                                    int32_t* ids,
                                    float* logprobs) {
  for (int32_t i = raw.logits.vocab + static_cast<int32_t>(threadIdx.x); i < k;
       i += kFinishThreads) {
    ids[i] = -1;
    logprobs[i] = -kInfinity;
  }
  k = min(k, raw.logits.vocab);
  if (k <= 0) {
    return;
  }
  const float from = fmaxf(value_reached_by(shared, raw, k), std::numeric_limits<float>::lowest());
  int32_t count = collect(shared, raw, from, [](TokenKey) { return true; });
  if (count < k) {
    __syncthreads();  // all threads have read the count
    count = add_masked(shared, raw.logits, k);
  } else if (count > kMaxKeys) {
    const TokenKey last = kth_key(shared, raw, -kInfinity, k);
    count = collect(shared, raw, key_value(last), [&](TokenKey key) { return key <= last; });
  }
  sort_keys(shared, count);
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < min(k, count); i += kFinishThreads) {
    ids[i] = key_id(shared.keys[i]);
    logprobs[i] = static_cast<float>(static_cast<double>(key_value(shared.keys[i])) - lse);
  }
}

// The log-probabilities of the tokens `named` [n].
__device__ inline void logprobs_of(const LogitRow& row,
                                   double lse,
                                   const int32_t* named,
                                   int32_t n,
                                   int32_t* ids,
                                   float* logprobs) {
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < n; i += kFinishThreads) {
    const int32_t id = named[i];
    ids[i] = id;
    logprobs[i] = id >= 0 && id < row.vocab
                      ? static_cast<float>(static_cast<double>(row.x[id]) - lse)
                      : -kInfinity;
  }
}

// Writes all logprobs of row i: of `token` and of the columns.
__device__ inline void write_logprobs(SearchShared& shared,
                                      const SampleArgs& args,
                                      const RowPlan& plan,
                                      int64_t i,
                                      const SearchRow& row,
                                      double lse,
                                      int32_t token) {
  lse = is_logits(args.logprobs_mode) ? 0.0 : lse;
  const bool given = !args.given.empty();
  const auto columns = static_cast<int32_t>(args.top_ids.shape[1]);
  int32_t* const ids = args.top_ids.row(i);
  float* const logprobs = args.top_logprobs.row(i);
  int32_t k = min(given ? args.num_given_top : args.params(plan.row).num_logprobs, columns);
  if (!given && has_logprob_ids(args.params(plan.row))) {
    const TokenListsView lists = lists_of(args, plan);
    k = min(lists.num_logprob_ids, columns);
    logprobs_of(row.logits, lse, lists.logprob_ids, k, ids, logprobs);
  } else {
    top_logprobs(shared, row, lse, k, ids, logprobs);
  }
  const int32_t rank = token_rank(shared, row, token);
  if (threadIdx.x == 0) {
    args.logprob(i) = static_cast<float>(static_cast<double>(row.logits.x[token]) - lse);
    args.rank(i) = rank;
    if (k < columns) {
      ids[k] = -1;
      logprobs[k] = -kInfinity;
    }
  }
}

}  // namespace warprow::cuda
