// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vector_access.cuh"

#include <cstdint>

// Norm and rotation of a bf16 head (rope_kv_write.h) by head_dim / 8 adjacent lanes, eight elements each. Every kernel that does
// this uses these, so that results have the same bits: products and sums of the rotation are rounded one by one.
namespace warprow::cuda {

// A lane's eight elements of a head, as two quads. If rope pairs halves, a lane of the rotated part has four
// pairs: a quad of the first half and the matching quad of the second. Otherwise the quads are adjacent.
template <bool kInterleaved>
struct Quads {
  int low;
  int high;

  // lane: of the head's. rot_dim: 0 for a head that is not rotated.
  __device__ __forceinline__ Quads(int lane, int rot_dim) {
    const bool halves = !kInterleaved && lane * kVec < rot_dim;
    low = halves ? lane * 4 : lane * kVec;
    high = low + (halves ? rot_dim / 2 : 4);
  }
  __device__ __forceinline__ uint4 load(const Bf16* at) const {
    const uint2 first = *reinterpret_cast<const uint2*>(at + low);
    const uint2 second = *reinterpret_cast<const uint2*>(at + high);
    return {first.x, first.y, second.x, second.y};
  }
  __device__ __forceinline__ void load(const float* at, float (&v)[kVec]) const {
    const float4 first = *reinterpret_cast<const float4*>(at + low);
    const float4 second = *reinterpret_cast<const float4*>(at + high);
    v[0] = first.x, v[1] = first.y, v[2] = first.z, v[3] = first.w;
    v[4] = second.x, v[5] = second.y, v[6] = second.z, v[7] = second.w;
  }
  __device__ __forceinline__ void store(Bf16* at, const uint4& raw) const {
    *reinterpret_cast<uint2*>(at + low) = {raw.x, raw.y};
    *reinterpret_cast<uint2*>(at + high) = {raw.z, raw.w};
  }
};

// cos and sin: of the lane's four pairs.
template <bool kInterleaved>
__device__ __forceinline__ void rotate(const float4& cos, const float4& sin, float (&x)[kVec]) {
  const float c[4] = {cos.x, cos.y, cos.z, cos.w};
  const float s[4] = {sin.x, sin.y, sin.z, sin.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float& p = x[kInterleaved ? 2 * i : i];
    float& q = x[kInterleaved ? 2 * i + 1 : i + 4];
    const float turned = __fsub_rn(__fmul_rn(p, c[i]), __fmul_rn(q, s[i]));
    q = __fadd_rn(__fmul_rn(q, c[i]), __fmul_rn(p, s[i]));
    p = turned;
  }
}

__device__ __forceinline__ float norm_factor(float squares, int32_t dim, float eps) {
  return 1.0F / sqrtf(__fadd_rn(squares / static_cast<float>(dim), eps));
}

// A lane's share of a head's sum of squares.
__device__ __forceinline__ float lane_squares(const float (&x)[kVec]) {
  float squares = 0.0F;
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    squares = fmaf(x[i], x[i], squares);
  }
  return squares;
}

__device__ __forceinline__ void apply_norm(float factor,
                                           const float (&weight)[kVec],
                                           float (&x)[kVec]) {
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    x[i] = x[i] * factor * weight[i];
  }
}

// weight: of the lane's elements. All lanes of the warp take part; those whose head has no norm keep x.
template <int kLanes>
__device__ __forceinline__ void norm_head(
    bool has_norm, int32_t dim, float eps, const float (&weight)[kVec], float (&x)[kVec]) {
  const float factor = norm_factor(sum_of_lanes<kLanes>(lane_squares(x)), dim, eps);
  if (has_norm) {
    apply_norm(factor, weight, x);
  }
}

}  // namespace warprow::cuda
