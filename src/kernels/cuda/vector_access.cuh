// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/ptx.cuh"

#include <cstddef>
#include <cstdint>
#include <cuda_bf16.h>

// Eight elements a thread: one 16-byte access for bf16, two for float32. Arithmetic is always float32.
namespace warprow::cuda {

using Bf16 = __nv_bfloat16;
inline constexpr int kVec = 8;

__device__ __forceinline__ void unpack2(uint32_t pair, float& low, float& high) {
  low = __uint_as_float(pair << 16);
  high = __uint_as_float(pair & 0xffff0000U);
}

__device__ __forceinline__ void unpack8(const uint4& raw, float (&v)[kVec]) {
  unpack2(raw.x, v[0], v[1]);
  unpack2(raw.y, v[2], v[3]);
  unpack2(raw.z, v[4], v[5]);
  unpack2(raw.w, v[6], v[7]);
}

__device__ __forceinline__ uint4 pack8(const float (&v)[kVec]) {
  return {
      pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7])};
}

__device__ __forceinline__ void load8(const Bf16* p, float (&v)[kVec]) {
  unpack8(*reinterpret_cast<const uint4*>(p), v);
}

__device__ __forceinline__ void load8(const float* p, float (&v)[kVec]) {
  const float4 low = reinterpret_cast<const float4*>(p)[0];
  const float4 high = reinterpret_cast<const float4*>(p)[1];
  v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
  v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
}

__device__ __forceinline__ void store8(Bf16* p, const float (&v)[kVec]) {
  *reinterpret_cast<uint4*>(p) = pack8(v);
}

__device__ __forceinline__ void store8(float* p, const float (&v)[kVec]) {
  reinterpret_cast<float4*>(p)[0] = {v[0], v[1], v[2], v[3]};
  reinterpret_cast<float4*>(p)[1] = {v[4], v[5], v[6], v[7]};
}

__device__ __forceinline__ float to_float(float v) { return v; }
__device__ __forceinline__ float to_float(Bf16 v) { return __bfloat162float(v); }

__device__ __forceinline__ void store(float* p, float v) { *p = v; }
__device__ __forceinline__ void store(Bf16* p, float v) { *p = __float2bfloat16_rn(v); }

// Whether rows of a matrix are aligned for access by eight elements.
inline bool rows_fit_vec(const void* base, int64_t row_stride, size_t element_bytes) {
  return reinterpret_cast<uintptr_t>(base) % 16 == 0 &&
         static_cast<size_t>(row_stride) * element_bytes % 16 == 0;
}

}  // namespace warprow::cuda
