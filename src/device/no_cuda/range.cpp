// SPDX-License-Identifier: Apache-2.0
#include "device/range.h"

namespace warprow {

ScopedRange::ScopedRange(const char* /*name*/) {}
ScopedRange::~ScopedRange() = default;  // NOLINT(performance-trivially-destructible): CUDA's is not

}  // namespace warprow
