// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// Wrappers of PTX instructions of a warp or a thread (sm_80 and later), each once. Those of Hopper alone are in mbarrier.cuh,
// tma.cuh, wgmma.cuh and cluster.cuh.
namespace warprow::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Returns lane 0's v; all lanes have the same. It tells the compiler so: if all branches before depend on such values alone,
// the compiler computes addresses from v once a warp, in uniform registers.
template <typename T>
__device__ __forceinline__ T warp_uniform(T v) {
  return __shfl_sync(~0U, v, 0);
}

// Adds to a counter in global memory and returns its old value. What the thread wrote or synchronised with before is visible
// to a thread that reads the sum by the same function. Cheaper than atomicAdd between two __threadfence().
__device__ __forceinline__ int32_t add_acq_rel(int32_t* at, int32_t v) {
  int32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(at), "r"(v)
               : "memory");
  return before;
}

// ---- cp.async
// Copies 16 bytes from global to shared memory. If not valid, writes zeros and reads nothing.
__device__ __forceinline__ void copy16_async(uint32_t shared, const void* global, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared),
               "l"(global),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void copy16_async(uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared), "l"(global)
               : "memory");
}
__device__ __forceinline__ void copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most `kPending` of this thread's committed groups are in flight.
template <int kPending>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ void clear16(uint32_t shared) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(shared), "r"(0) : "memory");
}

__device__ __forceinline__ uint32_t load_shared(uint32_t shared) {
  uint32_t v;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(shared) : "memory");
  return v;
}
__device__ __forceinline__ uint32_t load_shared_short(uint32_t shared) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(shared) : "memory");
  return v;
}
__device__ __forceinline__ uint32_t load_shared_byte(uint32_t shared) {
  uint32_t v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(shared) : "memory");
  return v;
}
__device__ __forceinline__ uint2 load_shared_two(uint32_t shared) {
  uint2 v;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(shared) : "memory");
  return v;
}
__device__ __forceinline__ uint4 load_shared_four(uint32_t shared) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(shared)
               : "memory");
  return v;
}

__device__ __forceinline__ void store_shared_two(uint32_t shared, const uint2& v) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(shared), "r"(v.x), "r"(v.y) : "memory");
}
__device__ __forceinline__ void store_shared_four(uint32_t shared, const uint4& v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(shared),
               "r"(v.x),
               "r"(v.y),
               "r"(v.z),
               "r"(v.w)
               : "memory");
}

// Stores two adjacent floats to shared memory.
__device__ __forceinline__ void store_two(uint32_t shared, float first, float second) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(shared), "f"(first), "f"(second)
               : "memory");
}

// ---- ldmatrix, stmatrix, movmatrix, mma
// Loads four 8x8 matrices of bf16. Lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}
// Stores four 8x8 matrices of bf16 to shared memory, addresses as above (sm_90).
__device__ __forceinline__ void store_matrices(uint32_t shared, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(shared),
               "r"(r[0]),
               "r"(r[1]),
               "r"(r[2]),
               "r"(r[3])
               : "memory");
}
// The same, each matrix transposed.
__device__ __forceinline__ void store_matrices_transposed(uint32_t shared, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(shared),
               "r"(r[0]),
               "r"(r[1]),
               "r"(r[2]),
               "r"(r[3])
               : "memory");
}
// Transposes an 8x8 matrix in the registers of a warp.
__device__ __forceinline__ uint32_t transpose_matrix(uint32_t r) {
  uint32_t t;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(t) : "r"(r));
  return t;
}
// d += a [16 x 16] * b [16 x 8], bf16 in, float32 sums.
__device__ __forceinline__ void mma_bf16(float (&d)[4],
                                         const uint32_t (&a)[4],
                                         uint32_t b0,
                                         uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- arithmetic
// Two float32 as bf16, `low` in the lower half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float log2_fast(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// The maximum; NaN if one of them is NaN.
__device__ __forceinline__ float max_or_nan(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

}  // namespace warprow::cuda
