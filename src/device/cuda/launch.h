// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cuda_runtime.h>
#include <utility>

namespace warprow::cuda {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;  // dynamic; above 48 KiB after allow_shared_bytes
  // Programmatic dependent launch: the kernel may start while the previous one still runs. It must call pdl_wait
  // (device/cuda/pdl.cuh) in every thread before it reads or writes anything that another kernel touches; weights
  // may be prefetched before.
  bool overlap_previous = true;
};

// Allows a kernel this many bytes of dynamic shared memory on the current device. Calls the driver only if it is
// more than before. carveout: the percentage of an SM's L1 and shared memory that should be shared memory while the
// kernel runs (cudaFuncAttributePreferredSharedMemoryCarveout); -1: the driver decides.
//
// Errors: a check fails if the device has less.
template <auto kKernel>
void allow_shared_bytes(size_t bytes, int carveout = -1) {
  static std::array<std::atomic<size_t>, 64> allowed{};  // by device
  int device = 0;
  WR_CUDA(cudaGetDevice(&device));
  std::atomic<size_t>& here = allowed.at(static_cast<size_t>(device));
  if (here.load(std::memory_order_relaxed) < bytes) {
    WR_CUDA(cudaFuncSetAttribute(
        kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
    if (carveout >= 0) {
      WR_CUDA(
          cudaFuncSetAttribute(kKernel, cudaFuncAttributePreferredSharedMemoryCarveout, carveout));
    }
    here.store(bytes, std::memory_order_relaxed);
  }
}

// Launches kernel(args...) on the stream; `name` shows in traces and errors.
template <typename... Params, typename... Args>
void launch(Stream& stream,
            const char* name,
            const LaunchShape& shape,
            void (*kernel)(Params...),
            Args&&... args) {
  CudaStream& on = as_cuda(stream);
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = on.handle();
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &overlap;
  config.numAttrs = shape.overlap_previous && on.kernels_wait() ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, kernel, Params(std::forward<Args>(args))...),
             name,
             __FILE__,
             __LINE__);
  on.note_launch(name);
}

}  // namespace warprow::cuda
