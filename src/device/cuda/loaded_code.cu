// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/loaded_code.h"

#include <cuda_runtime_api.h>

namespace warprow::cuda {
namespace {

// Compiled for the same architectures as all portable kernels.
__global__ void portable_probe() {}

}  // namespace

int32_t portable_code() {
  cudaFuncAttributes attributes = {};
  if (cudaFuncGetAttributes(&attributes, portable_probe) != cudaSuccess) {
    cudaGetLastError();  // clear the error, so that the next call does not report it
    return 0;
  }
  return attributes.ptxVersion;
}

}  // namespace warprow::cuda
