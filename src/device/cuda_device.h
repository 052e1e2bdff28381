// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.h"

#include <memory>
#include <string>

namespace warprow::cuda {

// Whether this build and machine can run on a CUDA device. Devices are numbered from 0 as the CUDA
// runtime numbers those it sees.
struct Availability {
  std::string why_not;  // empty: a device is there; else one line for the user
  DeviceFacts facts;
};
Availability find_device(int32_t ordinal = 0);

// Throws StartupError where there is no such device.
std::unique_ptr<Device> make_cuda_device(int32_t ordinal = 0);

// The facts of GPUs by name (h200), for planning without one. Null for an unknown name.
const DeviceFacts* known_device(const std::string& name);
std::string known_device_names();

}  // namespace warprow::cuda
