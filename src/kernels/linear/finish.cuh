// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

// From a product to an output. All GEMMs for Hopper use these, so that their results have the same bits: every operation
// is rounded by itself.
namespace warprow::cuda {

__device__ __forceinline__ float silu(float v) { return v / (1.0F + __expf(-v)); }

__device__ __forceinline__ float scaled(float product, float scale, float bias) {
  return __fadd_rn(__fmul_rn(product, scale), bias);
}
// The quotient has an error of up to 2 units in the last place. An exact division has a slow path, which gates far from 0
// take.
__device__ __forceinline__ float gated(float gate, float up) {
  return __fmul_rn(__fdividef(gate, __fadd_rn(1.0F, __expf(-gate))), up);
}

__device__ __forceinline__ float4 sum_of(const float4& a, const float4& b) {
  return {__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w)};
}

// A row's values times the weight of its norm.
__device__ __forceinline__ float4 weighted(const float4& v, const float4& w) {
  return {__fmul_rn(v.x, w.x), __fmul_rn(v.y, w.y), __fmul_rn(v.z, w.z), __fmul_rn(v.w, w.w)};
}

// Sums of squares of 64 adjacent columns, of which 16 lanes have four each, in quarters: each lane gets the sum over the four
// lanes whose numbers equal its own modulo 4. kFar, kNear: the distances between these lanes, if they are not 8 and 4.
template <int kFar = 8, int kNear = 4>
__device__ __forceinline__ float quarter_of_squares(const float4& v, unsigned lanes) {
  float squares =
      __fadd_rn(__fmaf_rn(v.x, v.x, __fmul_rn(v.y, v.y)), __fmaf_rn(v.z, v.z, __fmul_rn(v.w, v.w)));
  squares = __fadd_rn(squares, __shfl_xor_sync(lanes, squares, kFar));
  return __fadd_rn(squares, __shfl_xor_sync(lanes, squares, kNear));
}

// The whole sum, from the quarters of four adjacent lanes, in each of the 16 lanes.
__device__ __forceinline__ float sum_of_quarters(float quarter, unsigned lanes) {
  quarter = __fadd_rn(quarter, __shfl_xor_sync(lanes, quarter, 2));
  return __fadd_rn(quarter, __shfl_xor_sync(lanes, quarter, 1));
}
__device__ __forceinline__ float sum_of_quarters(const float4& quarters) {
  return __fadd_rn(__fadd_rn(quarters.x, quarters.z), __fadd_rn(quarters.y, quarters.w));
}
__device__ __forceinline__ float squares_at(const float* squares, int i) { return squares[i]; }
__device__ __forceinline__ float squares_at(const float4* squares, int i) {
  return sum_of_quarters(squares[i]);
}

// 1 / rms of a row from the sums of four adjacent lanes, each of every fourth part of the row.
__device__ __forceinline__ float inverse_rms_of(float sum,
                                                float width,
                                                float eps,
                                                unsigned lanes = ~0U) {
  sum = __fadd_rn(sum, __shfl_xor_sync(lanes, sum, 1));
  sum = __fadd_rn(sum, __shfl_xor_sync(lanes, sum, 2));
  return rsqrtf(__fadd_rn(__fdiv_rn(sum, width), eps));
}

// 1 / rms of a row from the sums of squares of its 64 columns each, which may be in quarters. Four adjacent lanes call it
// together. kAtOnce: quarters that a lane loads at once, four floats each.
template <int kAtOnce = 2, typename Squares>
__device__ __forceinline__ float inverse_rms(
    const Squares* squares, int parts, int lane, float width, float eps, unsigned lanes = ~0U) {
  float sum = 0.0F;
  if (squares != nullptr) {
#pragma unroll(sizeof(Squares) == 4 ? 8 : kAtOnce)
    for (int i = lane; i < parts; i += 4) {
      sum = __fadd_rn(sum, squares_at(squares, i));
    }
  }
  return inverse_rms_of(sum, width, eps, lanes);
}

}  // namespace warprow::cuda
