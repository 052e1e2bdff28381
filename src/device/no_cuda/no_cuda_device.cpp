// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"
#include "device/cuda_device.h"

namespace warprow::cuda {

Availability find_device() { return {"this build has no CUDA support", {}}; }

void limit_compute_capability(int32_t /*most*/) {}

std::unique_ptr<Device> make_cuda_device() {
  throw StartupError(ErrorCode::kUnsupported, find_device().why_not);
}

}  // namespace warprow::cuda
