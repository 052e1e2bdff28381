// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sample/row_search_cuda.cuh"

#include <cstdint>

namespace warprow::cuda {

// Which tokens top-k and top-p leave. Weights are integers, so that sums do not depend on the order
// in which a block's threads come.

// A token's share: one for top-k, for top-p e^(value - max) in units of 2^-44.
struct CountWeight {
  __device__ unsigned long long operator()(float /*value*/) const { return 1; }
};
struct MassWeight {
  float max;
  __device__ unsigned long long operator()(float value) const {
    return __float2ull_rn(expf(value - max) * 17592186044416.0F);
  }
};

// What is to be reached: `units` or, where p is below 1, that part of all weight.
struct Target {
  unsigned long long units;
  float p;

  __device__ unsigned long long of(unsigned long long total) const {
    if (p >= 1.0F) {
      return units;
    }
    const auto part = __double2ull_ru(static_cast<double>(p) * static_cast<double>(total));
    return part > total ? total : part;
  }
};

__device__ inline void clear_bins(SearchShared& shared) {
  __syncthreads();
  for (int32_t b = static_cast<int32_t>(threadIdx.x); b < kBins; b += kFinishThreads) {
    shared.low[b] = 0;
    shared.high[b] = 0;
    shared.count[b] = 0;
  }
  __syncthreads();
}

__device__ inline void add_to_bin(SearchShared& shared, int32_t bin, unsigned long long weight) {
  const auto low = static_cast<uint32_t>(weight);
  const uint32_t old = atomicAdd(&shared.low[bin], low);
  const uint32_t high = static_cast<uint32_t>(weight >> 32) + (old + low < old ? 1 : 0);
  if (high != 0) {
    atomicAdd(&shared.high[bin], high);
  }
  atomicAdd(&shared.count[bin], 1U);
}

__device__ inline unsigned long long bin_weight(const SearchShared& shared, int32_t bin) {
  return static_cast<unsigned long long>(shared.high[bin]) << 32 | shared.low[bin];
}

__device__ inline unsigned long long weight_of_bins(SearchShared& shared) {
  constexpr int32_t kEach = kBins / kFinishThreads;
  unsigned long long mine = 0;
  __syncthreads();
  for (int32_t b = 0; b < kEach; ++b) {
    mine += bin_weight(shared, static_cast<int32_t>(threadIdx.x) * kEach + b);
  }
  return block_sum(shared, mine);
}

// Finds the bin in which `target` is reached, given what lies before all bins, and leaves it in
// shared.bin and the weight before it in shared.before.
__device__ inline void find_bin(SearchShared& shared,
                                unsigned long long before,
                                unsigned long long target) {
  constexpr int32_t kEach = kBins / kFinishThreads;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  unsigned long long mine = 0;
  __syncthreads();
  for (int32_t b = 0; b < kEach; ++b) {
    mine += bin_weight(shared, thread * kEach + b);
  }
  unsigned long long end = mine;  // of this thread's bins, within the warp, then the block
#pragma unroll
  for (int32_t step = 1; step < 32; step *= 2) {
    const unsigned long long other = __shfl_up_sync(~0U, end, step);
    end += thread % 32 >= step ? other : 0;
  }
  if (thread % 32 == 31) {
    shared.parts[thread / 32] = end;
  }
  if (thread == 0) {
    shared.bin = -1;
  }
  __syncthreads();
  end += before;
  for (int32_t w = 0; w < thread / 32; ++w) {
    end += shared.parts[w];
  }
  unsigned long long begin = end - mine;
  if (begin < target && end >= target) {
    for (int32_t b = thread * kEach;; ++b) {
      const unsigned long long next = begin + bin_weight(shared, b);
      if (next >= target) {
        shared.bin = b;
        shared.before = begin;
        break;
      }
      begin = next;
    }
  }
  __syncthreads();
}

// Of the sorted shared.keys[0, count), the number that brings `before` up to `target`: at least
// one, at most all.
template <typename Weight>
__device__ int32_t count_until(SearchShared& shared,
                               int32_t count,
                               const Weight& weight,
                               unsigned long long before,
                               unsigned long long target) {
  auto* const weights = reinterpret_cast<unsigned long long*>(shared.low);  // low and high
  static_assert(sizeof(shared.low) + sizeof(shared.high) == kMaxKeys * sizeof(*weights));
  __syncthreads();
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += kFinishThreads) {
    weights[i] = weight(key_value(shared.keys[i]));
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    const auto lane = static_cast<int32_t>(threadIdx.x);
    int32_t end = count;
    for (int32_t first = 0; first < count; first += 32) {
      unsigned long long sum = first + lane < count ? weights[first + lane] : 0;
#pragma unroll
      for (int32_t step = 1; step < 32; step *= 2) {
        const unsigned long long other = __shfl_up_sync(~0U, sum, step);
        sum += lane >= step ? other : 0;
      }
      const uint32_t there = __ballot_sync(~0U, before + sum >= target);
      if (there != 0) {
        end = min(count, first + __ffs(static_cast<int>(there)));
        break;
      }
      before += __shfl_sync(~0U, sum, 31);
    }
    if (lane == 0) {
      shared.bin = end;
    }
  }
  __syncthreads();
  return shared.bin;
}

// The last of the first tokens (largest value, then lowest id) among those with keys up to `limit`
// whose weights reach the target; `limit` if they never do. For lists of any length: bins over
// max - value first, then, while a bin has more than a block can sort, over the keys in it.
// `span`: max - value up to where the last is likely.
template <typename Weight>
__device__ TokenKey last_of(SearchShared& shared,
                            const SearchRow& row,
                            TokenKey limit,
                            float span,
                            const Weight& weight,
                            const Target& wanted) {
  const float lower = key_value(limit);
  const float to_bin = static_cast<float>(kBins - 1) / fmaxf(span, 1e-30F);
  const auto bin_of = [&](float value) {
    return static_cast<int32_t>(fminf((row.max - value) * to_bin, static_cast<float>(kBins - 1)));
  };
  clear_bins(shared);
  for_each_at_least(row, lower, [&](float value, int32_t id) {
    if (token_key(value, id) <= limit) {
      add_to_bin(shared, bin_of(value), weight(value));
    }
  });
  const unsigned long long target = wanted.of(weight_of_bins(shared));
  find_bin(shared, 0, target);
  if (shared.bin < 0) {
    return limit;
  }
  const int32_t first_bin = shared.bin;
  int32_t bin = first_bin;
  unsigned long long before = shared.before;
  const auto in_bin = [&](float value, TokenKey key) {
    return key <= limit && bin_of(value) == first_bin;
  };
  TokenKey first = 0;
  TokenKey last = limit;
  if (shared.count[bin] > kMaxKeys) {
    if (threadIdx.x == 0) {
      shared.first = ~TokenKey{0};
      shared.last = 0;
    }
    __syncthreads();
    TokenKey least = ~TokenKey{0};
    TokenKey most = 0;
    for_each_at_least(row, lower, [&](float value, int32_t id) {
      const TokenKey key = token_key(value, id);
      if (in_bin(value, key)) {
        least = min(least, key);
        most = max(most, key);
      }
    });
    atomicMin(&shared.first, least);
    atomicMax(&shared.last, most);
    __syncthreads();
    first = shared.first;
    last = shared.last;
    while (true) {
      const int32_t shift = max(0, 64 - __clzll(static_cast<long long>(last - first)) - kBinBits);
      clear_bins(shared);
      for_each_at_least(row, key_value(last), [&](float value, int32_t id) {
        const TokenKey key = token_key(value, id);
        if (key >= first && key <= last) {
          add_to_bin(shared, static_cast<int32_t>((key - first) >> shift), weight(value));
        }
      });
      find_bin(shared, before, target);
      bin = shared.bin;
      before = shared.before;
      first += static_cast<TokenKey>(bin) << shift;
      last = min(last, first + ((TokenKey{1} << shift) - 1));
      if (first >> 32 == last >> 32) {  // one value: what is left are ids
        last = min(last, (first & ~TokenKey{0xffffffff}) + static_cast<uint32_t>(row.logits.vocab));
      }
      if (shared.count[bin] <= kMaxKeys) {
        break;
      }
    }
  }
  const int32_t count =
      collect(shared, row, fmaxf(lower, key_value(last)), [&](float value, TokenKey key) {
        return key >= first && key <= last && bin_of(value) == first_bin;
      });
  sort_keys(shared, count);
  return shared.keys[count_until(shared, count, weight, before, target) - 1];
}

}  // namespace warprow::cuda
