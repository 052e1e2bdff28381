// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace warprow {

// The largest of adjacent outputs of a row, and the lowest output that has it. NaN if one of them is NaN, whatever the
// output then is.
struct alignas(8) OutputMax {
  float value;
  int32_t output;
};

// Adjacent outputs that an OutputMax is of.
inline constexpr int32_t kMaxOutputs = 64;

}  // namespace warprow
