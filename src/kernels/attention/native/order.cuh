// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/attention/native/operands.cuh"
#include "kernels/attention/native/params.h"
#include "kernels/attention/native/scores.cuh"
#include "kernels/cuda/ptx.cuh"

#include <cuda_runtime.h>

// The order of sums of batch-invariant attention. Every kernel of it uses these, so that their results have the same
// bits: each operation is rounded by itself, and no compiler fuses one kernel's product with a sum and not the other's.
//
// Inside a part (parts.h), from an empty state, for each tile of 64 keys in order:
//   the scores: a chain over the head's elements in steps of 16, by mma.m16n8k16 or wgmma, whose bits are equal;
//   the maximum of the tile and of the part so far; earlier sums times shrink_factor; weights, rounded to the operands'
//   type (operands.cuh);
//   the sum of weights: lane t of four adds the weights of keys 8 n + 2 t and 8 n + 2 t + 1 for n = 0, 1, ...;
//   the output: a chain over the keys in steps of 16.
// At a part's end the four lanes' sums are added (sum_of_lanes), and maximum, sum and output are merged into those of
// the parts before (merge_part, merged). After the last part finish and finished make the result.
//
// With an 8-bit cache a step of the chain takes its 16 elements in another order, in keys and queries alike: elements 4 t,
// 4 t + 1, 4 t + 2, 4 t + 3 are at 2 t, 2 t + 1, 2 t + 8, 2 t + 9. So a lane loads its operands as four adjacent bytes.
//
// A tile or part that the query does not see changes nothing: its weights are 0 and the factor of what came before is 1.
// So kernels may skip it or not. It can only change the sign of a zero, which `finished` removes.
namespace warprow::cuda {

// Scores are raw products here. `scale` turns them into exponents of two; it is 1 with a soft cap, which is applied
// before (to_log2_score).
__device__ __forceinline__ float exponent_scale(float scale, float soft_cap) {
  return soft_cap > 0.0F ? 1.0F : __fmul_rn(scale, kLog2E);
}

// The factors of a KV head's products.
struct HeadScales {
  float score;     // turns a product into a score; includes the scale of an 8-bit cache's keys
  float exponent;  // turns a score, or without a soft cap a product, into an exponent of two
  float value;     // of the output: the scale of the cache's values
};
template <KvFormat kFormat>
__device__ __forceinline__ HeadScales head_scales(const NativeParams& p, int32_t kv_head) {
  if constexpr (kFormat == KvFormat::kBF16) {
    return {p.scale, exponent_scale(p.scale, p.soft_cap), 1.0F};
  } else {
    const float score = __fmul_rn(p.scale, p.k_scales[kv_head]);
    return {score, exponent_scale(score, p.soft_cap), p.v_scales[kv_head]};
  }
}

// The factor of sums under the maximum `before` when the maximum becomes `now`.
__device__ __forceinline__ float shrink_factor(float before, float now, float scale) {
  return exp2_fast(__fmul_rn(__fsub_rn(before, now), scale));
}

// base: __fmul_rn(the maximum, scale).
__device__ __forceinline__ float weight_of(float score, float scale, float base) {
  return exp2_fast(__fmaf_rn(score, scale, -base));
}

// Adds two adjacent keys' weights, as they were rounded, to a lane's sum.
template <KvFormat kFormat>
__device__ __forceinline__ float add_weights(float sum, uint32_t two) {
  using Two = Operands<kFormat>;
  return __fadd_rn(sum, __fadd_rn(Two::first_of(two), Two::second_of(two)));
}

// The sum of four adjacent lanes, in each of them.
__device__ __forceinline__ float sum_of_lanes(float sum) {
  sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffU, sum, 1));
  return __fadd_rn(sum, __shfl_xor_sync(0xffffffffU, sum, 2));
}

// Factors of the parts before and of the part that is merged into them.
struct PartFactors {
  float before, part;
};
__device__ __forceinline__ float merged(float before, float part, const PartFactors& by) {
  return __fmaf_rn(part, by.part, __fmul_rn(before, by.before));
}
// Merges a part's maximum and sum. Returns the factors for the outputs.
__device__ __forceinline__ PartFactors
merge_part(float& max, float& sum, float part_max, float part_sum, float scale) {
  const float higher = fmaxf(max, part_max);
  const PartFactors by = {shrink_factor(max, higher, scale),
                          shrink_factor(part_max, higher, scale)};
  sum = merged(sum, part_sum, by);
  max = higher;
  return by;
}

struct Finish {
  float inverse, lse;
};
template <KvFormat kFormat>
__device__ __forceinline__ Finish
finish(float max, float sum, const HeadScales& scales, const float* sinks, int32_t head) {
  float top = __fmul_rn(max, scales.exponent);
  float shrink = 1.0F;
  if (sinks != nullptr) {
    const float sink = __fmul_rn(sinks[head], kLog2E);
    const float higher = fmaxf(top, sink);
    shrink = exp2_fast(__fsub_rn(top, higher));
    sum = __fmaf_rn(sum, shrink, exp2_fast(__fsub_rn(sink, higher)));
    top = higher;
  }
  if constexpr (kFormat != KvFormat::kBF16) {
    shrink = __fmul_rn(shrink, scales.value);
  }
  return {sum > 0.0F ? __fdiv_rn(shrink, sum) : 0.0F, __fmul_rn(__fadd_rn(top, log2f(sum)), kLn2)};
}
// The same in default mode, where compilers may fuse, from the sums of four adjacent lanes.
__device__ __forceinline__ Finish
finish_lanes(float max, float sum, float scale, const float* sinks, int32_t head) {
  sum += __shfl_xor_sync(0xffffffffU, sum, 1);
  sum += __shfl_xor_sync(0xffffffffU, sum, 2);
  float top = max * scale;
  float shrink = 1.0F;
  if (sinks != nullptr) {
    const float sink = sinks[head] * kLog2E;
    const float higher = fmaxf(top, sink);
    shrink = exp2_fast(top - higher);
    sum = sum * shrink + exp2_fast(sink - higher);
    top = higher;
  }
  return {sum > 0.0F ? shrink / sum : 0.0F, (top + log2f(sum)) * kLn2};
}
__device__ __forceinline__ float finished(float output, float inverse) {
  return __fmaf_rn(output, inverse, 0.0F);
}

}  // namespace warprow::cuda
