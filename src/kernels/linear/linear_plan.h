// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.h"
#include "kernels/linear/linear.h"

#include <cstdint>

namespace warprow::cuda {

// The most rows of a product that go to the skinny kernel, and that go to a kernel of our own: above
// the first the wide one, above the second a library.
struct OwnRows {
  int64_t skinny = 0;
  int64_t all = 0;
};
OwnRows own_rows(const LinearShape& shape, const DeviceFacts& device);

enum class LinearPath : uint8_t { kSkinny, kWide, kLibrary };
LinearPath linear_path(const LinearShape& shape, int64_t num_rows, const DeviceFacts& device);

}  // namespace warprow::cuda
