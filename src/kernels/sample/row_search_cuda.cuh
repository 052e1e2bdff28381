// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sample/token_key_cuda.cuh"

#include <cstdint>

namespace warprow::cuda {

// Searches of one block in one row. The scan's group maxima say which groups can have what is
// looked for, so a search for large values reads little of the row.

constexpr int32_t kFinishThreads = 512;
constexpr int32_t kFinishWarps = kFinishThreads / 32;
constexpr int32_t kMaxKeys = 2048;  // tokens that a block holds and sorts
constexpr int32_t kBins = 2048;
constexpr int32_t kBinBits = 11;

struct SearchShared {
  TokenKey keys[kMaxKeys];
  // A sum of 64 bits for each bin, as two halves: shared memory adds 32 bits at a time.
  uint32_t low[kBins];
  uint32_t high[kBins];
  uint32_t count[kBins];
  unsigned long long parts[kFinishWarps];
  unsigned long long before;  // weight in front of the bin
  TokenKey first;
  TokenKey last;
  int32_t num_keys;
  int32_t bin;  // -1: the target is behind all bins
};

// A row's values with what a search needs. Values are logits / divisor, where that is not 1.
struct SearchRow {
  LogitRow logits;
  const float* group_max;  // of the logits  [num_groups]
  int32_t num_groups;
  float divisor;
  float max;  // of the values

  __device__ float value(float logit) const { return divisor == 1.0F ? logit : logit / divisor; }
};

// Calls f(values, id) with tokens id .. id + 3 of all groups whose maximum reaches `lower`.
// Values behind the row's end are -inf.
template <typename F>
__device__ void for_each_four(const SearchRow& row, float lower, const F& f) {
  for (int32_t g = static_cast<int32_t>(threadIdx.x); g < row.num_groups; g += kFinishThreads) {
    if (!(row.value(row.group_max[g]) >= lower)) {
      continue;
    }
    const int32_t first = g / kTileThreads * kTileTokens + g % kTileThreads * 4;
    constexpr int32_t kBatch = 4;  // loads in flight
#pragma unroll 1
    for (int32_t part = 0; part < kTileParts; part += kBatch) {
      float4 v[kBatch];
#pragma unroll
      for (int32_t p = 0; p < kBatch; ++p) {
        v[p] = row.logits.four(first + (part + p) * kPartTokens);
      }
#pragma unroll
      for (int32_t p = 0; p < kBatch; ++p) {
        const float values[4] = {
            row.value(v[p].x), row.value(v[p].y), row.value(v[p].z), row.value(v[p].w)};
        f(values, first + (part + p) * kPartTokens);
      }
    }
  }
}

// Calls f(value, id) with all tokens of value >= lower, and some threads behind the row's end
// nothing at all.
template <typename F>
__device__ void for_each_at_least(const SearchRow& row, float lower, const F& f) {
  for_each_four(row, lower, [&](const float(&values)[4], int32_t id) {
#pragma unroll
    for (int32_t c = 0; c < 4; ++c) {
      if (values[c] >= lower && id + c < row.logits.vocab) {
        f(values[c], id + c);
      }
    }
  });
}

// A value that at least k tokens reach and few more: the k-th largest of the threads' maxima, each
// over the groups of one thread. k is below kFinishThreads.
__device__ inline float value_reached_by(const SearchRow& row, int32_t k) {
  float mine = -kInfinity;
  for (int32_t g = static_cast<int32_t>(threadIdx.x); g < row.num_groups; g += kFinishThreads) {
    mine = fmaxf(mine, row.group_max[g]);
  }
  const uint32_t v = ordered(row.value(mine));
  uint32_t reached = 0;
  for (uint32_t bit = 1U << 31; bit != 0; bit >>= 1) {
    const int32_t count = __syncthreads_count(v >= (reached | bit) ? 1 : 0);
    if (count >= k) {
      reached |= bit;
      if (count == k) {
        break;
      }
    }
  }
  return from_ordered(reached);
}

// Puts the keys of the tokens with value >= lower that `wanted` lets through into shared.keys, in
// no order, and returns their number, which may be above kMaxKeys: then some are missing.
template <typename Wanted>
__device__ int32_t
collect(SearchShared& shared, const SearchRow& row, float lower, const Wanted& wanted) {
  __syncthreads();
  if (threadIdx.x == 0) {
    shared.num_keys = 0;
  }
  __syncthreads();
  for_each_at_least(row, lower, [&](float value, int32_t id) {
    const TokenKey key = token_key(value, id);
    if (wanted(value, key)) {
      const int32_t at = atomicAdd(&shared.num_keys, 1);
      if (at < kMaxKeys) {
        shared.keys[at] = key;
      }
    }
  });
  __syncthreads();
  return shared.num_keys;
}

// Sorts shared.keys[0, count): bitonic, over the next power of two.
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

// The sum of the block's values, in every thread.
__device__ inline unsigned long long block_sum(SearchShared& shared, unsigned long long v) {
#pragma unroll
  for (int32_t step = 16; step > 0; step /= 2) {
    v += __shfl_xor_sync(~0U, v, step);
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    shared.parts[threadIdx.x / 32] = v;
  }
  __syncthreads();
  v = 0;
#pragma unroll
  for (const unsigned long long part : shared.parts) {
    v += part;
  }
  return v;
}

}  // namespace warprow::cuda
