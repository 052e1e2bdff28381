// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace warprow::cuda {

// Prefetches memory to L2: 16-byte aligned, a multiple of 16 bytes. Does nothing below compute capability 9.0.
__device__ __forceinline__ void prefetch_to_l2(const void* from, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

}  // namespace warprow::cuda
