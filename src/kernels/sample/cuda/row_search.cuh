// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/reduce.cuh"
#include "kernels/sample/cuda/sample_row.cuh"

#include <cstdint>

namespace warprow::cuda {

// A sort key of a token: ascending keys are descending values, then ascending ids. Not for NaN.
using TokenKey = unsigned long long;

__device__ __forceinline__ TokenKey token_key(float value, int32_t id) {
  return static_cast<TokenKey>(~ordered(value)) << 32 | static_cast<uint32_t>(id);
}
__device__ __forceinline__ int32_t key_id(TokenKey key) { return static_cast<int32_t>(key); }
__device__ __forceinline__ float key_value(TokenKey key) {
  return from_ordered(~static_cast<uint32_t>(key >> 32));
}

// Searches by one CTA in one row. The scan's group maxima tell which groups can contain a match, so a search
// for large values reads little of the row.

constexpr int32_t kFinishThreads = 512;
constexpr int32_t kMaxGroups = num_tiles(kMaxVocab) * kTileThreads;
constexpr int32_t kBinBits = 11;
constexpr int32_t kBins = 1 << kBinBits;

struct SearchShared {
  union {  // not used at the same time
    TokenKey keys[kMaxKeys];
    uint32_t bins[kBins];
  };
  uint16_t groups[kMaxGroups];  // groups to read
  int32_t num_groups;
  int32_t num_keys;
  int32_t counts[3];
  unsigned long long sum;
};

// A row's values and what a search needs. Values are logits / divisor, unless the divisor is 1.
struct SearchRow {
  LogitRow logits;
  const float* group_max;  // of the logits  [num_groups]
  int32_t num_groups;
  float divisor;
  float max_logit;
  float max;  // of the values

  __device__ float value(float logit) const { return divisor == 1.0F ? logit : logit / divisor; }
  __device__ TokenKey key(int32_t id) const { return token_key(value(logits.x[id]), id); }
};

// Lists the groups whose maximum is at least `lower`, roughly in order. Returns their number.
__device__ inline int32_t list_groups(SearchShared& shared, const SearchRow& row, float lower) {
  __syncthreads();
  if (threadIdx.x == 0) {
    shared.num_groups = 0;
  }
  __syncthreads();
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const uint32_t lanes_before = (1U << (thread % 32)) - 1;
  constexpr int32_t kBatch = 5;  // loads in flight
  for (int32_t first = 0; first < row.num_groups; first += kBatch * kFinishThreads) {
    float max[kBatch];
#pragma unroll
    for (int32_t b = 0; b < kBatch; ++b) {
      const int32_t g = first + b * kFinishThreads + thread;
      max[b] = g < row.num_groups ? row.group_max[g] : __int_as_float(-1);  // NaN: never listed
    }
#pragma unroll
    for (int32_t b = 0; b < kBatch; ++b) {
      const bool wanted = row.value(max[b]) >= lower;
      const uint32_t votes = __ballot_sync(~0U, wanted);
      if (votes != 0) {
        int32_t at = 0;
        if (thread % 32 == 0) {
          at = atomicAdd(&shared.num_groups, __popc(votes));
        }
        at = __shfl_sync(~0U, at, 0) + __popc(votes & lanes_before);
        if (wanted) {
          shared.groups[at] = static_cast<uint16_t>(first + b * kFinishThreads + thread);
        }
      }
    }
  }
  __syncthreads();
  return shared.num_groups;
}

// Calls f(logits, id) with tokens id .. id + 3 of all groups whose maximum, as a value, is at least `lower`;
// -inf past the row's end.
template <typename F>
__device__ void for_each_four(SearchShared& shared, const SearchRow& row, float lower, const F& f) {
  const int32_t groups = list_groups(shared, row, lower);
  const int32_t items = groups * kTileParts;
  const float per_part = 1.0F / static_cast<float>(groups);
  constexpr int32_t kBatch = 4;  // loads in flight
  for (int32_t first = static_cast<int32_t>(threadIdx.x); first < items;
       first += kBatch * kFinishThreads) {
    float4 v[kBatch];
    int32_t id[kBatch];
#pragma unroll
    for (int32_t b = 0; b < kBatch; ++b) {
      const int32_t item = first + b * kFinishThreads;
      id[b] = row.logits.vocab;
      if (item < items) {  // item / groups, exact because the numbers are far below 2^23
        const auto part = static_cast<int32_t>((static_cast<float>(item) + 0.5F) * per_part);
        const int32_t g = shared.groups[item - part * groups];
        id[b] = g / kTileThreads * kTileTokens + part * kPartTokens + g % kTileThreads * 4;
      }
      v[b] = row.logits.four(id[b]);
    }
#pragma unroll
    for (int32_t b = 0; b < kBatch; ++b) {
      const float logits[4] = {v[b].x, v[b].y, v[b].z, v[b].w};
      f(logits, id[b]);
    }
  }
}

// Calls f(value, id) for all tokens with value >= lower.
template <typename F>
__device__ void for_each_at_least(SearchShared& shared,
                                  const SearchRow& row,
                                  float lower,
                                  const F& f) {
  for_each_four(shared, row, lower, [&](const float(&logits)[4], int32_t id) {
#pragma unroll
    for (int32_t c = 0; c < 4; ++c) {
      const float value = row.value(logits[c]);
      if (value >= lower && id + c < row.logits.vocab) {
        f(value, id + c);
      }
    }
  });
}

// The largest number for which count(number) >= k, or one for which it is exactly k. The count is the same in
// all threads.
template <typename Count>
__device__ float largest_reached(int32_t k, const Count& count) {
  uint32_t reached = 0;
  for (uint32_t bit = 1U << 31; bit != 0; bit >>= 1) {
    const int32_t n = count(reached | bit);
    if (n >= k) {
      reached |= bit;
      if (n == k) {
        break;
      }
    }
  }
  return from_ordered(reached);
}

// A value that at least k tokens reach, and few more. It is the k-th largest maximum: of all groups of a
// thread if k is small, else of single groups. -inf if there are not that many.
__device__ inline float value_reached_by(SearchShared& shared, const SearchRow& row, int32_t k) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (k <= kFinishThreads / 2) {
    float mine = -kInfinity;
    for (int32_t g = thread; g < row.num_groups; g += kFinishThreads) {
      mine = fmaxf(mine, row.group_max[g]);
    }
    const uint32_t v = ordered(row.value(mine));
    return largest_reached(k,
                           [&](uint32_t least) { return __syncthreads_count(v >= least ? 1 : 0); });
  }
  if (k > row.num_groups) {
    return -kInfinity;
  }
  __syncthreads();
  if (thread < 3) {
    shared.counts[thread] = 0;
  }
  __syncthreads();
  // One barrier per iteration: a count is read in its own iteration and cleared two iterations later.
  int32_t turn = 0;
  const float logit = largest_reached(k, [&](uint32_t least) {
    int32_t n = 0;
    for (int32_t g = thread; g < row.num_groups; g += kFinishThreads) {
      n += ordered(row.group_max[g]) >= least ? 1 : 0;
    }
    n = __reduce_add_sync(~0U, n);
    if (thread % 32 == 0) {
      atomicAdd(&shared.counts[turn % 3], n);
    }
    if (thread == 0) {
      shared.counts[(turn + 1) % 3] = 0;
    }
    __syncthreads();
    return shared.counts[turn++ % 3];
  });
  return row.value(logit);
}

// Collects the keys of the tokens with value >= lower for which wanted(key) is true in shared.keys, in no
// order. Returns their number; if it exceeds kMaxKeys, some keys are missing.
template <typename Wanted>
__device__ int32_t
collect(SearchShared& shared, const SearchRow& row, float lower, const Wanted& wanted) {
  __syncthreads();
  if (threadIdx.x == 0) {
    shared.num_keys = 0;
  }
  volatile int32_t* const so_far = &shared.num_keys;
  for_each_at_least(shared, row, lower, [&](float value, int32_t id) {
    const TokenKey key = token_key(value, id);
    if (wanted(key) && *so_far <= kMaxKeys) {
      const int32_t at = atomicAdd(&shared.num_keys, 1);
      if (at < kMaxKeys) {
        shared.keys[at] = key;
      }
    }
  });
  __syncthreads();
  return shared.num_keys;
}

// Sorts shared.keys[0, count) by a bitonic sort over the next power of two.
__device__ inline void sort_keys(SearchShared& shared, int32_t count) {
  int32_t n = 2;
  while (n < count) {
    n *= 2;
  }
  const auto thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t i = count + thread; i < n; i += kFinishThreads) {
    shared.keys[i] = ~TokenKey{0};
  }
  for (int32_t size = 2; size <= n; size *= 2) {
    for (int32_t step = size / 2; step > 0; step /= 2) {
      __syncthreads();
      for (int32_t pair = thread; pair < n / 2; pair += kFinishThreads) {
        const int32_t a = 2 * pair - (pair & (step - 1));
        const int32_t b = a + step;
        const TokenKey x = shared.keys[a];
        const TokenKey y = shared.keys[b];
        if ((x > y) == ((a & size) == 0)) {
          shared.keys[a] = y;
          shared.keys[b] = x;
        }
      }
    }
  }
  __syncthreads();
}

// The sum of all threads' values, in every thread.
__device__ inline unsigned long long block_sum(SearchShared& shared, unsigned long long v) {
  v = sum_of_lanes(v);
  __syncthreads();
  if (threadIdx.x == 0) {
    shared.sum = 0;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    atomicAdd(&shared.sum, v);
  }
  __syncthreads();
  return shared.sum;
}

// The sum over all threads of the CTA in a fixed order, in every thread.
using BlockSums = double[kFinishThreads / 32];
__device__ inline double block_sum(BlockSums& shared, double mine) {
  mine = sum_of_lanes(mine);
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    shared[threadIdx.x / 32] = mine;
  }
  __syncthreads();
  double sum = 0.0;
  for (const double part : shared) {
    sum += part;
  }
  return sum;
}

}  // namespace warprow::cuda
