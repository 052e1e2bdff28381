// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

namespace warprow::cuda {

// Fails with the call's text, the error's name and, inside a step, its number and sizes.
void check_cuda(cudaError_t error, const char* call, const char* file, int line);

}  // namespace warprow::cuda

#define WR_CUDA(call) ::warprow::cuda::check_cuda((call), #call, __FILE__, __LINE__)
