// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/loaded_code.h"

#include <cuda_runtime_api.h>

namespace warprow::cuda {
namespace {

// Compiled as every kernel for sm_90a alone.
__global__ void sm90_probe() {}

}  // namespace

bool loads_sm90_code() {
  cudaFuncAttributes attributes = {};
  if (cudaFuncGetAttributes(&attributes, sm90_probe) != cudaSuccess) {
    cudaGetLastError();  // it is no failure of the next call
    return false;
  }
  return true;
}

}  // namespace warprow::cuda
