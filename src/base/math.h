// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"

namespace warprow {

// For non-negative a and positive b.
template <typename T>
WR_HD constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

template <typename T>
WR_HD constexpr T round_up(T a, T b) {
  return ceil_div(a, b) * b;
}

}  // namespace warprow
