// SPDX-License-Identifier: Apache-2.0
#include "device/range.h"

namespace warprow {

ScopedRange::ScopedRange(const char* /*name*/) {}
ScopedRange::~ScopedRange() = default;

}  // namespace warprow
