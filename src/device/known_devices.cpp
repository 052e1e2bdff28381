// SPDX-License-Identifier: Apache-2.0
#include "device/cuda_device.h"

namespace warprow::cuda {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

struct Known {
  const char* name;
  DeviceFacts facts;
};

// Memory as the driver reports it, free after the context is made.
const Known kKnown[] = {
    {"h200",
     {.kind = DeviceKind::kCuda,
      .name = "NVIDIA H200",
      .total_bytes = 143167 * kMiB,
      .free_bytes = 142650 * kMiB,
      .compute_capability = 90,
      .num_sms = 132,
      .max_shared_bytes = 227 * 1024,
      .own_memory = true,
      .zeroed_memory = false}},
};

}  // namespace

const DeviceFacts* known_device(const std::string& name) {
  for (const Known& known : kKnown) {
    if (name == known.name) {
      return &known.facts;
    }
  }
  return nullptr;
}

std::string known_device_names() {
  std::string names;
  for (const Known& known : kKnown) {
    names += (names.empty() ? "" : ", ") + std::string(known.name);
  }
  return names;
}

}  // namespace warprow::cuda
