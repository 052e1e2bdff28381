// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"

#include <bit>
#include <cmath>
#include <cstdint>

namespace warprow {

// Conversions between float32 and e4m3 (OCP 8-bit floating point, 2023: no infinities, 0x7f and 0xff are NaN).
inline constexpr float kMaxF8E4M3 = 448.0F;

WR_HD inline float f8_e4m3_to_f32(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80U) << 24;
  const uint32_t magnitude = bits & 0x7fU;
  if (magnitude == 0x7fU) {
    return std::bit_cast<float>(sign | 0x7fc00000U);
  }
  // Fields of the number as those of a float32 that is 2^-120 times as large.
  return std::bit_cast<float>(sign | magnitude << 20) * 0x1p120F;
}

// To nearest, ties to even; magnitudes above 448 become 448.
WR_HD inline uint8_t f32_to_f8_e4m3(float v) {
  const auto sign = static_cast<uint8_t>(std::signbit(v) ? 0x80U : 0U);
  const float magnitude = std::fabs(v);
  if (std::isnan(v)) {
    return sign | 0x7fU;
  }
  if (magnitude >= kMaxF8E4M3) {
    return sign | 0x7eU;
  }
  if (magnitude < 0x1p-6F) {  // steps of 2^-9; the sum rounds
    const float rounded = magnitude * 0x1p9F + 0x1p23F;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(rounded) & 0xffU));
  }
  uint32_t fields = std::bit_cast<uint32_t>(magnitude);
  fields += 0x7ffffU + (fields >> 20 & 1U);
  return static_cast<uint8_t>(sign | ((fields >> 20) - (120U << 3)));
}

}  // namespace warprow
