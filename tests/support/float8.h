// SPDX-License-Identifier: Apache-2.0
// 8-bit floats of a KV cache by their definition: a table of values, and a search in it.
#pragma once

#include "base/check.h"
#include "base/dtype.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

namespace warprow::testing {

// The number that a byte of the type is.
inline float f8_value(DType type, uint8_t bits) {
  WR_CHECK(is_f8(type));
  const int fraction_bits = type == DType::kF8E4M3 ? 3 : 2;
  const int bias = type == DType::kF8E4M3 ? 7 : 15;
  const int magnitude = bits & 0x7f;
  const int exponent = magnitude >> fraction_bits;
  const double fraction = std::ldexp(magnitude & ((1 << fraction_bits) - 1), -fraction_bits);
  if (type == DType::kF8E4M3 ? magnitude == 0x7f : magnitude > 0x7b) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  const double value =
      exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1.0 + fraction, exponent - bias);
  return static_cast<float>((bits & 0x80) != 0 ? -value : value);
}

// The nearest number's byte, of two the even one; beyond the largest, the largest.
inline uint8_t f8_bits(DType type, float v) {
  const int most = type == DType::kF8E4M3 ? 0x7e : 0x7b;
  const auto sign = static_cast<uint8_t>(std::signbit(v) ? 0x80 : 0);
  if (std::isnan(v)) {
    return sign | 0x7f;
  }
  static const auto kTables = [] {
    std::array<std::array<double, 128>, 2> tables{};
    for (size_t i = 0; i < 128; ++i) {
      tables[0][i] = static_cast<double>(f8_value(DType::kF8E4M3, static_cast<uint8_t>(i)));
      tables[1][i] = static_cast<double>(f8_value(DType::kF8E5M2, static_cast<uint8_t>(i)));
    }
    return tables;
  }();
  const auto& table = kTables[type == DType::kF8E4M3 ? 0 : 1];
  const double magnitude = std::fabs(static_cast<double>(v));
  const auto above = static_cast<int>(
      std::upper_bound(table.begin(), table.begin() + most + 1, magnitude) - table.begin());
  if (above > most) {
    return sign | static_cast<uint8_t>(most);
  }
  const int below = above - 1;
  const double to_below = magnitude - table[static_cast<size_t>(below)];
  const double to_above = table[static_cast<size_t>(above)] - magnitude;
  const bool takes_above = to_above < to_below || (to_above == to_below && above % 2 == 0);
  return sign | static_cast<uint8_t>(takes_above ? above : below);
}

}  // namespace warprow::testing
