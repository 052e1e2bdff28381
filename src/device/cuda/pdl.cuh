// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace warprow::cuda {

// Programmatic dependent launch, device side. Every kernel launched with overlap_previous calls pdl_wait in every
// thread before it touches what another kernel wrote or reads. pdl_wait returns when the previous kernels are
// complete and their writes visible. pdl_release, called once the block has little left to do (or at once), lets
// the next kernel's blocks start.
__device__ __forceinline__ void pdl_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void pdl_release() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace warprow::cuda
