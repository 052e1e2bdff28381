// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/act_view.h"

#include <cstdint>

namespace warprow {

// The first rows of a buffer that several layers share, as wide as one layer needs and without gaps.
inline ActView part_of(const ActView& buffer, int64_t rows, int64_t width) {
  return {buffer.dtype, buffer.data, rows, width};
}

}  // namespace warprow
