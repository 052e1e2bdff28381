// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/reduce.cuh"
#include "kernels/sample/cuda/top_k_top_p.cuh"
#include "kernels/sample/rules/ratio.h"

#include <cstdint>

namespace warprow::cuda {

// The verification of a draft by one CTA (rules/ratio.h), and the survivors' masses, which draw_drafts.cu uses too. Sums are
// in double and in a fixed order.

// A row's survivors of min_p, top_k and top_p, as masses e^(value - max).
struct RowMasses {
  SearchRow row;
  TokenKey last;   // of the survivors
  int32_t argmax;  // survives, too

  __device__ float of(float logit, int32_t id) const {
    const float value = row.value(logit);
    const bool survives = token_key(value, id) <= last || id == argmax;
    return survives ? exp2_fast((value - row.max) * kLog2e) : 0.0F;
  }
};

// Tokens whose masses a warp adds: 16 times four in each lane.
constexpr int32_t kWarpTokens = 128;
constexpr int32_t kChunkTokens = 16 * kWarpTokens;
constexpr int32_t kMostChunks = static_cast<int32_t>(kMaxVocab / kChunkTokens);

struct VerifyShared {
  BlockSums sums;
  double chunks[kMostChunks];
  int32_t token;
};

// The mass of all survivors.
__device__ inline double total_mass(BlockSums& shared, const RowMasses& masses) {
  const LogitRow& logits = masses.row.logits;
  double mine = 0.0;
  for (int32_t id = 4 * static_cast<int32_t>(threadIdx.x); id < logits.vocab;
       id += 4 * kFinishThreads) {
    const float4 x = logits.four(id);  // -inf past the end
    mine += static_cast<double>(masses.of(x.x, id)) + masses.of(x.y, id + 1) +
            masses.of(x.z, id + 2) + masses.of(x.w, id + 3);
  }
  return block_sum(shared, mine);
}

// The masses that remain if a rejected draft's distribution, times the total, is subtracted.
struct RemainingMasses {
  const RowMasses& masses;
  double total;            // of masses
  const float* probs;      // of the draft's distribution, by the drafter's ids
  int32_t width;           // of it
  const int32_t* own_ids;  // the drafter's ids by the model's, or null

  __device__ double prob_of(int32_t id) const {
    const int32_t own = own_ids == nullptr ? id : id < masses.row.logits.vocab ? own_ids[id] : -1;
    return own >= 0 && own < width ? static_cast<double>(probs[own]) : 0.0;
  }
  // Of tokens id .. id + 3.
  __device__ void four(int32_t id, double (&left)[4]) const {
    const float4 v = masses.row.logits.four(id);
    const float x[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int32_t c = 0; c < 4; ++c) {
      const float mass = masses.of(x[c], id + c);
      left[c] = mass > 0.0F ? remaining_mass(mass, total, prob_of(id + c)) : 0.0;
    }
  }
};

// One warp: the first token of the chunk with which the sum of the remaining masses exceeds the target; the last one that
// has a mass, if rounding leaves none; -1: no token has one.
__device__ inline int32_t find_in_chunk(const RemainingMasses& left,
                                        int32_t chunk,
                                        double before,
                                        double target) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  int32_t last = -1;
  for (int32_t step = 0; step < kChunkTokens / kWarpTokens; ++step) {
    const int32_t id = chunk * kChunkTokens + step * kWarpTokens + 4 * lane;
    double four[4];
    left.four(id, four);
    const double mine = four[0] + four[1] + four[2] + four[3];
    const double sum = sum_up_to_lane(mine, lane);
    const uint32_t reached = __ballot_sync(~0U, mine > 0.0 && before + sum > target);
    int32_t found = -1;
    double at = before + (sum - mine);
    for (int32_t c = 0; c < 4; ++c) {
      at += four[c];
      last = four[c] > 0.0 ? id + c : last;
      found = found < 0 && four[c] > 0.0 && at > target ? id + c : found;
    }
    if (reached != 0) {
      const int32_t lane_of = __ffs(static_cast<int>(reached)) - 1;
      return __shfl_sync(~0U, found < 0 ? last : found, lane_of);
    }
    before += __shfl_sync(~0U, sum, 31);
  }
  return __reduce_max_sync(~0U, last);
}

// A token drawn from the remaining masses, or -1 if all of them are 0.
__device__ inline int32_t draw_remaining(VerifyShared& shared,
                                         const RemainingMasses& left,
                                         const RandomKey& key) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t chunks = (left.masses.row.logits.vocab + kChunkTokens - 1) / kChunkTokens;
  for (int32_t chunk = static_cast<int32_t>(threadIdx.x) / 32; chunk < chunks;
       chunk += kFinishThreads / 32) {
    double mine = 0.0;
    for (int32_t step = 0; step < kChunkTokens / kWarpTokens; ++step) {
      double four[4];
      left.four(chunk * kChunkTokens + step * kWarpTokens + 4 * lane, four);
      mine += four[0] + four[1] + four[2] + four[3];
    }
    mine = sum_of_lanes(mine);
    if (lane == 0) {
      shared.chunks[chunk] = mine;
    }
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    double sum = 0.0;
    for (int32_t chunk = 0; chunk < chunks; ++chunk) {
      sum += shared.chunks[chunk];
    }
    const double target = uniform_open(random_bits(key, 0)) * sum;
    int32_t in = -1;
    double before = 0.0;
    double reached = 0.0;
    for (int32_t chunk = 0; chunk < chunks && (in < 0 || reached <= target); ++chunk) {
      if (shared.chunks[chunk] > 0.0) {
        in = chunk;
        before = reached;
      }
      reached += shared.chunks[chunk];
    }
    const int32_t token = in < 0 ? -1 : find_in_chunk(left, in, before, target);
    if (lane == 0) {
      shared.token = token;
    }
  }
  __syncthreads();
  return shared.token;
}

// The draft behind logits row i, if p / q accepts it, else the token that replaces it. All threads of the CTA.
__device__ inline int32_t verify_draft(VerifyShared& shared,
                                       const RowMasses& masses,
                                       const SampleArgs& args,
                                       const RowPlan& plan,
                                       int64_t i) {
  const double total = total_mass(shared.sums, masses);
  const DraftProbs& drafts = args.drafts;
  const RemainingMasses left{masses,
                             total,
                             drafts.probs + args.draft_at(i) * drafts.width,
                             static_cast<int32_t>(drafts.width),
                             drafts.own_ids};
  RandomKey key = draw_key(args, plan);
  key.purpose = RandomPurpose::kAccept;
  const float mass = masses.of(masses.row.logits.x[plan.draft], plan.draft);
  if (accepts_draft(mass, total, left.prob_of(plan.draft), key)) {
    return plan.draft;
  }
  key.purpose = RandomPurpose::kRecover;
  const int32_t other = draw_remaining(shared, left, key);
  return other < 0 ? plan.draft : other;  // < 0: p and q differ by rounding alone
}

}  // namespace warprow::cuda
