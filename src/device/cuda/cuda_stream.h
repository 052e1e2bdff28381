// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/stream.h"

#include <cuda_runtime_api.h>

namespace warprow::cuda {

// A CUDA stream on which kernels are launched.
//
// Owns: nothing that callers see; the device creates the handle.
// Thread: one submitting thread at a time.
class CudaStream : public Stream {
 public:
  [[nodiscard]] virtual cudaStream_t handle() const = 0;
  // Whether the launched kernels contain pdl_wait: code for 9.0 and later does. A kernel without it must not start
  // while the previous one runs.
  [[nodiscard]] virtual bool kernels_wait() const = 0;
  // Called by launch() for each kernel: counts driver calls outside captures.
  virtual void note_launch(const char* name) = 0;
};

inline CudaStream& as_cuda(Stream& stream) { return static_cast<CudaStream&>(stream); }

}  // namespace warprow::cuda
