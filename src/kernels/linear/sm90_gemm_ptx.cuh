// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/hopper_cuda.cuh"

#include <cstdint>
#include <cuda.h>

// The PTX instructions of sm90_bf16_gemm_small_m, besides those of kernels/hopper_cuda.cuh.

namespace warprow::cuda::sm90_gemm_detail {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// ---- clusters
__device__ __forceinline__ int cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}
// Barrier over all threads of the cluster. Relaxed: writes before the arrive are not visible after it,
// because a fence of that scope would wait for all loads in flight.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}
// The same address in the shared memory of another CTA of the cluster.
__device__ __forceinline__ uint32_t remote_address(uint32_t shared, int rank) {
  uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared), "r"(rank));
  return remote;
}
// Copies from this CTA's shared memory to another's; the bytes count on that CTA's mbarrier.
__device__ __forceinline__ void remote_copy(uint32_t to,
                                            uint32_t from,
                                            uint32_t bytes,
                                            uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(to),
      "r"(from),
      "r"(bytes),
      "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// ---- TMA
__device__ __forceinline__ void fetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// L2 policy for data that is read once.
__device__ __forceinline__ uint64_t read_once() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void copy_tile(
    uint32_t to, const CUtensorMap& map, uint32_t barrier, int col, int row, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
      "l"(&map),
      "r"(barrier),
      "r"(col),
      "r"(row),
      "l"(policy)
      : "memory");
}
__device__ __forceinline__ void copy_tile(
    uint32_t to, const CUtensorMap& map, uint32_t barrier, int col, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(to),
      "l"(&map),
      "r"(barrier),
      "r"(col),
      "r"(row)
      : "memory");
}
// ---- wgmma: d [64 x cols] += a [64 x 16] * b [cols x 16]^T, both from shared memory
__device__ __forceinline__ void wgmma(float (&d)[16], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" WR_ACC16_NAMES
               "}, %16, %17, 1, 1, 1, 0, 0;\n"
               : WR_ACC16(d, 0)
               : "l"(a), "l"(b));
}
__device__ __forceinline__ void wgmma(float (&d)[32], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" WR_ACC32_NAMES
               "}, %32, %33, 1, 1, 1, 0, 0;\n"
               : WR_ACC16(d, 0), WR_ACC16(d, 16)
               : "l"(a), "l"(b));
}
__device__ __forceinline__ void wgmma(float (&d)[64], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" WR_ACC64_NAMES
               "}, %64, %65, 1, 1, 1, 0, 0;\n"
               : WR_ACC16(d, 0), WR_ACC16(d, 16), WR_ACC16(d, 32), WR_ACC16(d, 48)
               : "l"(a), "l"(b));
}

}  // namespace warprow::cuda::sm90_gemm_detail
