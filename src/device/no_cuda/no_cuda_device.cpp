// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"
#include "device/cuda_device.h"

namespace warprow::cuda {

Availability find_device(int32_t /*ordinal*/) { return {"this build has no CUDA support", {}}; }

void limit_compute_capability(int32_t /*most*/) {}

std::unique_ptr<Device> make_cuda_device(int32_t ordinal) {
  throw StartupError(ErrorCode::kUnsupported, find_device(ordinal).why_not);
}

}  // namespace warprow::cuda
