// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/stream.h"

#include <cstdint>

namespace warprow::cuda {

// out[i] = ((parts[0][i] + parts[1][i]) + parts[2][i]) + ..., parts f32 [size, n] on this GPU. `out` may be one of them.
void ordered_sum(Stream& stream, const float* parts, int32_t size, int64_t n, float* out);

}  // namespace warprow::cuda
