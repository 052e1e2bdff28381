// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.h"
#include "kernels/linear/linear.h"

#include <cstdint>
#include <span>

namespace warprow {

// Start-up: chooses the kernels for operations of these shapes and up to max_toks rows, so that no step has
// to. CUDA: opens cuBLASLt if a product needs it. With `tune` it times unknown algorithms, once per machine,
// which takes device memory while it runs. Throws StartupError if the library is missing. The CPU has nothing
// to choose.
namespace cuda {
void prepare_linear(const DeviceFacts& device,
                    std::span<const LinearShape> shapes,
                    int64_t max_toks,
                    bool tune);
}
inline void prepare_linear(const DeviceFacts& device,
                           std::span<const LinearShape> shapes,
                           int64_t max_toks,
                           bool tune) {
  if (device.kind == DeviceKind::kCuda) {
    cuda::prepare_linear(device, shapes, max_toks, tune);
  }
}

}  // namespace warprow
