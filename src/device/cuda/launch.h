// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"

#include <cstddef>
#include <cuda_runtime.h>
#include <utility>

namespace warprow::cuda {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;  // dynamic; above 48 KiB the kernel's attribute must have been raised
  // Programmatic dependent launch: the kernel may start while the one before it still runs. It must
  // call pdl_wait (device/cuda/pdl.cuh) in every thread before it reads or writes anything another
  // kernel touches; weights may be prefetched before.
  bool overlap_previous = true;
};

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
  config.numAttrs = shape.overlap_previous ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, kernel, Params(std::forward<Args>(args))...),
             name,
             __FILE__,
             __LINE__);
  on.note_launch(name);
}

}  // namespace warprow::cuda
