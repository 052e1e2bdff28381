// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/ptx.cuh"

// Reads and writes of the shared memory of other CTAs of a cluster (sm_90a).
namespace warprow::cuda {

// Barrier over all threads of the cluster, with writes before it visible behind it.
__device__ __forceinline__ void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}
// Loads the float at this address, `own`, from the shared memory of another CTA.
__device__ __forceinline__ float load_remote(const float* own, int rank) {
  float v;
  asm volatile("ld.shared::cluster.f32 %0, [%1];"
               : "=f"(v)
               : "r"(remote_address(shared_address(own), rank))
               : "memory");
  return v;
}
// Stores a word at this address, `own`, in the shared memory of another CTA.
__device__ __forceinline__ void store_remote(const float* own, int rank, float v) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(remote_address(shared_address(own), rank)),
               "f"(v)
               : "memory");
}
__device__ __forceinline__ void store_remote(const int32_t* own, int rank, int32_t v) {
  asm volatile("st.shared::cluster.s32 [%0], %1;" ::"r"(remote_address(shared_address(own), rank)),
               "r"(v)
               : "memory");
}

}  // namespace warprow::cuda
