// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/cuda_check.h"

#include "base/check.h"
#include "device/step_note.h"

namespace warprow::cuda {

void check_cuda(cudaError_t error, const char* call, const char* file, int line) {
  if (error == cudaSuccess) [[likely]] {
    return;
  }
  check_failed(
      file,
      line,
      call,
      fmt::format(
          "{} ({}){}", cudaGetErrorName(error), cudaGetErrorString(error), describe_step_note()));
}

}  // namespace warprow::cuda
