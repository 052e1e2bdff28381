// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"

#include <cstdint>

namespace warprow {

// Deviation of the random numbers that become e2m1 numbers.
inline constexpr float kE2m1Deviation = 1.5F;

// Twice the e2m1 number next to v: 0, 1, 2, 3, 4, 6, 8 or 12, and its sign.
WR_HD constexpr int32_t nearest_e2m1(float v) {
  const float twice = 2.0F * (v < 0.0F ? -v : v);
  const int32_t step = twice < 4.0F ? 1 : twice < 8.0F ? 2 : 4;
  // NOLINTNEXTLINE(bugprone-incorrect-roundings): at most 2^7 steps, constexpr, and the same on a GPU
  const int32_t steps = static_cast<int32_t>(twice / static_cast<float>(step) + 0.5F) * step;
  const int32_t rounded = steps < 12 ? steps : 12;
  return v < 0.0F ? -rounded : rounded;
}

// The four bits of the e2m1 number that is half of q.
WR_HD constexpr uint32_t e2m1_of_twice(int32_t q) {
  const auto twice = static_cast<uint32_t>(q < 0 ? -q : q);
  const uint32_t number = twice < 4 ? twice : twice < 8 ? 2 + twice / 2 : 4 + twice / 4;
  return q < 0 ? number | 8U : number;
}

}  // namespace warprow
