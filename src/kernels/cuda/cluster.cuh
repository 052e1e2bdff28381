// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// The size of a kernel's clusters, in a file that is also compiled for GPUs without them. There the kernel must be empty.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define WR_CLUSTER_DIMS(size)
#else
#define WR_CLUSTER_DIMS(size) __cluster_dims__(size, 1, 1)
#endif

// Thread block clusters (sm_90a).
namespace warprow::cuda {

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

}  // namespace warprow::cuda
