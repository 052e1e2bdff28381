// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.h"

#include <cstdint>
#include <memory>
#include <string>

namespace warprow::cuda {

// Whether this build and machine can run on a CUDA device. `why_not` names a GPU that the build has no code for.
// Devices are numbered from 0, as the CUDA runtime numbers the visible ones.
struct Availability {
  std::string why_not;  // empty: a device is available; else one line for the user
  DeviceFacts facts;
};
Availability find_device(int32_t ordinal = 0);

// For tests: GPUs found or made from now on report at most this compute capability, so that kernels for later ones
// are not used. Thread: before any device is made.
void limit_compute_capability(int32_t most);

// Throws StartupError if there is no such device.
std::unique_ptr<Device> make_cuda_device(int32_t ordinal = 0);

// The facts of GPUs by name (h200), for planning without one. Null for an unknown name.
const DeviceFacts* known_device(const std::string& name);
std::string known_device_names();

}  // namespace warprow::cuda
