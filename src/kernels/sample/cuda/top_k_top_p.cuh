// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/sample/cuda/row_search.cuh"
#include "kernels/sample/rules/min_p.h"

#include <cstdint>

namespace warprow::cuda {

// Survivors of top-k and top-p. Masses are integers, so that sums do not depend on the order of a CTA's
// threads.

constexpr float kMassBits = 31.0F;           // log2 of the most likely token's mass
constexpr double kMassUnits = 2147483648.0;  // 2^kMassBits

__device__ __forceinline__ uint32_t mass_of(float value, float max) {
  return __float2uint_rn(exp2_fast(fmaf(value - max, kLog2e, kMassBits)));
}

// The mass of the tokens with keys up to `last`.
__device__ inline unsigned long long mass_up_to(SearchShared& shared,
                                                const SearchRow& row,
                                                TokenKey last) {
  unsigned long long mine = 0;
  for_each_at_least(shared, row, key_value(last), [&](float value, int32_t id) {
    mine += token_key(value, id) <= last ? mass_of(value, row.max) : 0;
  });
  return block_sum(shared, mine);
}

// For each token under test, the mass or the number of the tokens before it. Tokens are ordered by logit, not by
// value: if the temperature's division makes two values equal, their logits still decide, not their ids.
struct Tested {
  float logit[kTested];  // infinity: no token
  int32_t id[kTested];
  unsigned long long before[kTested];

  __device__ float least() const {
    float v = kInfinity;
#pragma unroll
    for (const float x : logit) {
      v = fminf(v, x);
    }
    return v;
  }

  // Adds the masses of four tokens. `scale`: log2(e) / divisor, or 0 to count tokens.
  __device__ void add(const float (&logits)[4], int32_t first, float max_logit, float scale) {
    const float from = least();
#pragma unroll
    for (int32_t c = 0; c < 4; ++c) {
      const float x = logits[c];
      if (x < from) {
        continue;
      }
      const uint32_t weight =
          scale == 0.0F ? 1 : __float2uint_rn(exp2_fast(fmaf(x - max_logit, scale, kMassBits)));
#pragma unroll
      for (int32_t t = 0; t < kTested; ++t) {
        const bool in_front = x > logit[t] || (x == logit[t] && first + c < id[t]);
        before[t] += in_front ? weight : 0;
      }
    }
  }
};

// Sums the masses of the tokens that precede those under test, in every thread.
__device__ inline void sum_masses_before(SearchShared& shared,
                                         const SearchRow& row,
                                         bool by_mass,
                                         Tested& tested) {
  const float scale = by_mass ? kLog2e / row.divisor : 0.0F;
  for_each_four(shared, row, row.value(tested.least()), [&](const float(&logits)[4], int32_t id) {
    tested.add(logits, id, row.max_logit, scale);
  });
#pragma unroll
  for (int32_t t = 0; t < kTested; ++t) {
    tested.before[t] = block_sum(shared, tested.before[t]);
  }
}

// The number of the sorted shared.keys[0, count) that have p of their mass; at least one.
__device__ inline int32_t count_top_p(SearchShared& shared, int32_t count, float p, float max) {
  unsigned long long mine = 0;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += kFinishThreads) {
    mine += mass_of(key_value(shared.keys[i]), max);
  }
  const double target = static_cast<double>(p) * static_cast<double>(block_sum(shared, mine));
  if (threadIdx.x < 32) {
    const auto lane = static_cast<int32_t>(threadIdx.x);
    unsigned long long before = 0;
    int32_t end = count;
    for (int32_t first = 0; first < count; first += 32) {
      const unsigned long long own =
          first + lane < count ? mass_of(key_value(shared.keys[first + lane]), max) : 0;
      const unsigned long long sum = sum_up_to_lane(own, lane);
      const uint32_t there = __ballot_sync(~0U, static_cast<double>(before + sum) >= target);
      if (there != 0) {
        end = min(count, first + __ffs(static_cast<int>(there)));
        break;
      }
      before += __shfl_sync(~0U, sum, 31);
    }
    if (lane == 0) {
      shared.num_keys = end;
    }
  }
  __syncthreads();
  return shared.num_keys;
}

// The bin that contains the k-th of all counted elements, -1 if there are fewer than k, and the number of
// elements in earlier bins. One warp computes it; all threads get it.
struct BinOf {
  int32_t bin;
  int32_t before;
};
__device__ inline BinOf bin_of_kth(SearchShared& shared, int32_t k) {
  __syncthreads();
  if (threadIdx.x < 32) {
    const auto lane = static_cast<int32_t>(threadIdx.x);
    int32_t before = 0;
    int32_t bin = -1;
    for (int32_t first = 0; first < kBins; first += 32) {
      const auto n = static_cast<int32_t>(shared.bins[first + lane]);
      const int32_t sum = sum_up_to_lane(n, lane);
      const uint32_t there = __ballot_sync(~0U, before + sum >= k);
      if (there != 0) {
        const int32_t at = __ffs(static_cast<int>(there)) - 1;
        bin = first + at;
        before += __shfl_sync(~0U, sum - n, at);
        break;
      }
      before += __shfl_sync(~0U, sum, 31);
    }
    if (lane == 0) {
      shared.counts[0] = bin;
      shared.counts[1] = before;
    }
  }
  __syncthreads();
  return {shared.counts[0], shared.counts[1]};
}

// The k-th key of a row's tokens with value >= lower, or the last if there are fewer. Works for lists of any
// length and any ties: the range of keys is split into bins repeatedly, until a bin is one key. Rarely
// needed.
__device__ __noinline__ inline TokenKey kth_key(SearchShared& shared,
                                                const SearchRow& row,
                                                float lower,
                                                int32_t k) {
  TokenKey first = token_key(row.max, 0);
  TokenKey last = token_key(lower, row.logits.vocab - 1);
  while (first < last) {
    const int32_t bits = 64 - __clzll(static_cast<long long>(last - first));
    const int32_t shift = max(0, bits - kBinBits);
    __syncthreads();
    for (int32_t b = static_cast<int32_t>(threadIdx.x); b < kBins; b += kFinishThreads) {
      shared.bins[b] = 0;
    }
    for_each_at_least(shared, row, key_value(last), [&](float value, int32_t id) {
      const TokenKey key = token_key(value, id);
      if (key >= first && key <= last) {
        atomicAdd(&shared.bins[(key - first) >> shift], 1U);
      }
    });
    const BinOf found = bin_of_kth(shared, k);
    if (found.bin < 0) {
      return last;
    }
    k -= found.before;
    first += static_cast<TokenKey>(found.bin) << shift;
    last = min(last, first + ((TokenKey{1} << shift) - 1));
    if (first >> 32 == last >> 32) {  // one value: only ids are left to search
      const auto last_id = static_cast<uint32_t>(row.logits.vocab - 1);
      last = min(last, (first & ~TokenKey{0xffffffff}) | last_id);
    }
  }
  return first;
}

// The largest key that survives min_p, top_k and top_p. Under top_p the most likely token survives, too, even if the
// rounding of masses excludes it.
__device__ inline TokenKey last_survivor(SearchShared& shared,
                                         const SearchRow& row,
                                         const RowPlan& plan) {
  float lower = std::numeric_limits<float>::lowest();  // -inf never survives
  if (plan.min_p > 0.0F) {
    lower = fmaxf(lower, min_p_threshold(row.max, plan.min_p));
  }
  TokenKey last = token_key(lower, row.logits.vocab - 1);
  if (plan.top_k > 0) {
    last = kth_key(shared, row, lower, plan.top_k);
  }
  if (plan.top_p < 1.0F) {
    // Binary search for the first key whose mass reaches the target. It may be the most likely token's key.
    const double target =
        static_cast<double>(plan.top_p) * static_cast<double>(mass_up_to(shared, row, last));
    TokenKey first = token_key(row.max, 0);
    while (first < last) {
      const TokenKey middle = first + (last - first) / 2;
      const bool enough = static_cast<double>(mass_up_to(shared, row, middle)) >= target;
      first = enough ? first : middle + 1;
      last = enough ? middle : last;
    }
  }
  return last;
}

}  // namespace warprow::cuda
