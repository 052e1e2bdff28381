// SPDX-License-Identifier: Apache-2.0
#include "device/range.h"

#include <nvtx3/nvToolsExt.h>

namespace warprow {

ScopedRange::ScopedRange(const char* name) { nvtxRangePushA(name); }
ScopedRange::~ScopedRange() { nvtxRangePop(); }

}  // namespace warprow
