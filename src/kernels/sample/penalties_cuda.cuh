// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sample/sample_row_cuda.cuh"

#include <cstdint>

namespace warprow::cuda {

// Penalties and min_tokens without a copy of the row: the block that has a tile in registers counts
// the row's outputs that fall into it. Prompt tokens, which lie in host memory, come as a bit mask
// that prompt_mask made once for all tiles.

constexpr int32_t kStopBit = INT32_MIN;  // of a tile's entry; the other bits count outputs

// Whether the row's prompt matters.
__device__ inline bool needs_prompt(const SampleArgs& args, const RowPlan& plan) {
  return plan.penalties && args.params(plan.row).repetition_penalty != 1.0F;
}

// All threads of the block: fills entries [kTileTokens] in shared memory for tokens from `first`.
__device__ inline void fill_entries(const SampleArgs& args,
                                    const RowPlan& plan,
                                    int32_t first,
                                    int32_t* entries) {
  auto* const clear = reinterpret_cast<int4*>(entries);
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < kTileTokens / 4; i += kTileThreads) {
    clear[i] = int4{0, 0, 0, 0};
  }
  __syncthreads();
  if (plan.penalties) {
    const KnownTokens tokens = known_tokens(args.tokens, plan.row, plan.position);
    for (int32_t pos = tokens.prompt_len + static_cast<int32_t>(threadIdx.x); pos < tokens.len;
         pos += kTileThreads) {
      const uint32_t at = static_cast<uint32_t>(tokens.at(pos)) - static_cast<uint32_t>(first);
      if (at < static_cast<uint32_t>(kTileTokens)) {
        atomicAdd(&entries[at], 1);
      }
    }
  }
  if (plan.too_short) {
    const int32_t* stop_ids = args.stop_ids + plan.row * args.stop_ids_stride;
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < stop_ids[0]; i += kTileThreads) {
      const uint32_t at = static_cast<uint32_t>(stop_ids[i + 1]) - static_cast<uint32_t>(first);
      if (at < static_cast<uint32_t>(kTileTokens)) {
        atomicOr(&entries[at], kStopBit);
      }
    }
  }
  __syncthreads();
}

// A logit under the rules on tokens.
__device__ inline float changed_logit(
    float x, int32_t entry, bool in_prompt, bool penalties, const SampleParams& params) {
  const int32_t count = entry & ~kStopBit;
  if (penalties && (count > 0 || in_prompt)) {
    x = penalized(x, params, count);
  }
  return (entry & kStopBit) != 0 ? -kInfinity : x;
}

}  // namespace warprow::cuda
