// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/dtype.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace warprow::test {

using Bytes = std::vector<std::byte>;

// Appends the bytes of the value (little endian on all supported machines).
template <typename T>
void put(Bytes& out, const T& value) {
  const auto* raw = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), raw, raw + sizeof(T));
}

inline void put_chars(Bytes& out, std::string_view text) {
  const auto* raw = reinterpret_cast<const std::byte*>(text.data());
  out.insert(out.end(), raw, raw + text.size());
}

// Overwrites bytes at an offset, to corrupt a file on purpose.
template <typename T>
void patch(Bytes& bytes, size_t at, const T& value) {
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

// Rounds to the nearest IEEE half, ties to even. Overflow becomes infinity.
inline uint16_t f32_to_f16(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) {
    return static_cast<uint16_t>(sign | 0x7e00);
  }
  if (magnitude == 0.0F) {
    return sign;
  }
  if (magnitude >= 65520.0F) {
    return static_cast<uint16_t>(sign | 0x7c00);
  }
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude = m * 2^exponent, m in [0.5, 1)
  // The exponent of the least significant bit that a half can hold here.
  const int lsb = std::max(exponent - 11, -24);
  const auto units = static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, -lsb)));
  // A mantissa that rounds up to the next power of two carries into the exponent field, as the format requires.
  return static_cast<uint16_t>(sign | ((static_cast<uint32_t>(lsb + 24) << 10) + units));
}

inline Bytes f32_bytes(std::span<const float> values) {
  const auto raw = std::as_bytes(values);
  return {raw.begin(), raw.end()};
}

// n values that draw() returns one after the other, in bf16.
template <typename Draw>
Bytes bf16_bytes(size_t n, Draw draw) {
  std::vector<uint16_t> halves(n);
  std::generate(halves.begin(), halves.end(), [&] { return f32_to_bf16(draw()); });
  const auto raw = std::as_bytes(std::span(halves));
  return {raw.begin(), raw.end()};
}

inline Bytes f16_bytes(std::span<const float> values) {
  Bytes out;
  for (const float value : values) {
    put(out, f32_to_f16(value));
  }
  return out;
}

// Q8_0 blocks of 32: f16 scale = max / 127, then the rounded quotients. values.size() must be a
// multiple of 32.
inline Bytes q8_0_bytes(std::span<const float> values) {
  Bytes out;
  for (size_t begin = 0; begin < values.size(); begin += 32) {
    float max = 0.0F;
    for (const float value : values.subspan(begin, 32)) {
      max = std::max(max, std::fabs(value));
    }
    const float scale = max / 127.0F;
    put(out, f32_to_f16(scale));
    for (const float value : values.subspan(begin, 32)) {
      put(out, static_cast<int8_t>(scale == 0.0F ? 0.0F : std::round(value / scale)));
    }
  }
  return out;
}

}  // namespace warprow::test
