// SPDX-License-Identifier: Apache-2.0
#include "comm/cpu/rank_sum.h"

#include <cstring>

namespace warprow::cpu {
namespace {

// What a thread of the pool takes at a time; waking the threads for less does not pay.
constexpr int64_t kGrainBytes = 128 << 10;

// Four registers of values are added at a time.
using Lanes = float __attribute__((vector_size(16)));
constexpr int kRegisters = 4;
constexpr int64_t kLanes = kRegisters * sizeof(Lanes) / sizeof(float);

void sum_range(
    const RankValues& values, int32_t num_ranks, float* out, int64_t begin, int64_t end) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    Lanes sum[kRegisters];
    std::memcpy(sum, values[0] + i, sizeof(sum));
    for (int32_t rank = 1; rank < num_ranks; ++rank) {
      Lanes value[kRegisters];
      std::memcpy(value, values[static_cast<size_t>(rank)] + i, sizeof(value));
#pragma GCC unroll 4
      for (int k = 0; k < kRegisters; ++k) {
        sum[k] += value[k];
      }
    }
    std::memcpy(out + i, sum, sizeof(sum));
  }
  for (; i < end; ++i) {
    float sum = values[0][i];
    for (int32_t rank = 1; rank < num_ranks; ++rank) {
      sum += values[static_cast<size_t>(rank)][i];
    }
    out[i] = sum;
  }
}

}  // namespace

void sum_in_rank_order(
    ComputePool& pool, const RankValues& values, int32_t num_ranks, float* out, int64_t n) {
  pool.parallel_for(
      n, kGrainBytes / int64_t{sizeof(float)}, [&](int64_t begin, int64_t end, int32_t) {
        sum_range(values, num_ranks, out, begin, end);
      });
}

void copy_bytes(ComputePool& pool, std::byte* to, const std::byte* from, size_t bytes) {
  pool.parallel_for(
      static_cast<int64_t>(bytes), kGrainBytes, [&](int64_t begin, int64_t end, int32_t) {
        std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
      });
}

}  // namespace warprow::cpu
