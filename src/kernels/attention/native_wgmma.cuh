// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/hopper_cuda.cuh"

#include <cstdint>
#include <cuda.h>

namespace warprow::cuda {

// TMA loads and wgmma of attention on Hopper (sm_90a).

// TMA load of a box of a tensor into shared memory; its bytes count on the mbarrier.
__device__ __forceinline__ void copy_box(
    uint32_t to, const CUtensorMap& map, uint32_t barrier, int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
      "l"(&map),
      "r"(barrier),
      "r"(c0),
      "r"(c1),
      "r"(c2),
      "r"(c3)
      : "memory");
}

// d [64 x 128] (+)= a [64 x 16] * b [128 x 16]^T, both from shared memory.
__device__ __forceinline__ void wgmma_scores(float (&d)[64], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" WR_ACC64_NAMES
      "}, %64, %65, add, 1, 1, 0, 0;\n}\n"
      : WR_ACC16(d, 0), WR_ACC16(d, 16), WR_ACC16(d, 32), WR_ACC16(d, 48)
      : "l"(a), "l"(b), "r"(add ? 1 : 0));
}
// d [64 x 128] += a [64 x 16] * b [16 x 128]; a from registers.
__device__ __forceinline__ void wgmma_values(float (&d)[64], const uint32_t* a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" WR_ACC64_NAMES
               "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;\n"
               : WR_ACC16(d, 0), WR_ACC16(d, 16), WR_ACC16(d, 32), WR_ACC16(d, 48)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
// The same for heads of 64.
__device__ __forceinline__ void wgmma_values(float (&d)[32], const uint32_t* a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" WR_ACC32_NAMES
               "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;\n"
               : WR_ACC16(d, 0), WR_ACC16(d, 16)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

}  // namespace warprow::cuda
