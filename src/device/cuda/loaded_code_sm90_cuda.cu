// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/loaded_code.h"

#include <cuda_runtime_api.h>

namespace warprow::cuda {
namespace {

// Compiled like all kernels that are for sm_90a only.
__global__ void sm90_probe() {}

}  // namespace

bool loads_sm90_code() {
  cudaFuncAttributes attributes = {};
  if (cudaFuncGetAttributes(&attributes, sm90_probe) != cudaSuccess) {
    cudaGetLastError();  // clear the error, so that the next call does not report it
    return false;
  }
  return true;
}

}  // namespace warprow::cuda
