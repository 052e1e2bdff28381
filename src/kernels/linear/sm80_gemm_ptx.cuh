// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/linear/sm80_gemm_layout.h"

#include <cstdint>
#include <cuda_bf16.h>

// The PTX instructions of sm80_bf16_gemm_small_m.

namespace warprow::cuda::sm80_gemm_detail {

__device__ __forceinline__ void copy_async_16(uint32_t to_shared, const void* from, bool valid) {
  const int bytes = valid ? 16 : 0;  // the rest of the 16 bytes is set to zero
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to_shared),
               "l"(from),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void copy_async_16(uint32_t to_shared, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to_shared), "l"(from)
               : "memory");
}
__device__ __forceinline__ void commit_async() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wait_async() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
// Waits until at most `pending` of the newest groups are in flight.
__device__ __forceinline__ void wait_async(int pending) {
  switch (pending) {
    case 0:
      return wait_async<0>();
    case 1:
      return wait_async<1>();
    case 2:
      return wait_async<2>();
    default:
      return wait_async<kSm80GemmMaxStages - 1>();
  }
}

// Loads four 8 x 8 matrices of bf16 (ldmatrix). Lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}

__device__ __forceinline__ void mma_bf16(float (&c)[4],
                                         const uint32_t (&a)[4],
                                         uint32_t b0,
                                         uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Byte offset of a 16-byte unit in a row of 256 bytes. The same unit of eight rows is in different banks.
__device__ __forceinline__ int swizzled(int row, int unit) { return (unit ^ (row & 7)) * 16; }

}  // namespace warprow::cuda::sm80_gemm_detail
