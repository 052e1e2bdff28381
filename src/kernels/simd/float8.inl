// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/simd/vec.h"

// Vectors of 8-bit floats: e4m3 without infinities, and e5m2 (OCP 8-bit floating point, 2023). Included by files that are
// compiled once for each instruction set, as vec.h is.
namespace warprow::cpu {
namespace {

typedef uint8_t VecB __attribute__((vector_size(kLanes)));

struct E4M3 {
  static constexpr int kFraction = 3;
  static constexpr int kBias = 7;
  static constexpr uint32_t kMost = 0x7e;  // the largest finite number
};
struct E5M2 {
  static constexpr int kFraction = 2;
  static constexpr int kBias = 15;
  static constexpr uint32_t kMost = 0x7b;
};

constexpr float power_of_two(int exponent) {
  float power = 1.0F;
  for (int i = 0; i < exponent; ++i) {
    power *= 2.0F;
  }
  for (int i = 0; i > exponent; --i) {
    power *= 0.5F;
  }
  return power;
}

inline VecI bytes_to_lanes(VecB bytes) {
#if defined(__AVX512F__)
  return reinterpret_cast<VecI>(
      _mm512_maskz_cvtepu8_epi32(0xffff, reinterpret_cast<__m128i>(bytes)));
#else
  return __builtin_convertvector(bytes, VecI);
#endif
}

// Exact. Without denormal floats on the way, which are slow on some CPUs.
template <typename F8>
inline VecF load_f8(const uint8_t* p) {
  constexpr int kShift = 23 - F8::kFraction;
  const VecI bits = bytes_to_lanes(load_as<VecB>(p));
  const VecI magnitude = bits & 0x7f;
  const VecI sign = (bits & 0x80) << 24;
  const VecI normal = (magnitude << kShift) + ((127 - F8::kBias) << 23);
  const VecF small =
      __builtin_convertvector(magnitude, VecF) * power_of_two(1 - F8::kBias - F8::kFraction);
  VecI value = magnitude < (1 << F8::kFraction) ? as_int(small) : normal;
  value = magnitude > static_cast<int32_t>(F8::kMost) ? splat(int32_t{0x7fc00000}) : value;
  return as_float(value | sign);
}

// To nearest, ties to even; magnitudes above the largest number become it; NaN stays NaN.
template <typename F8>
inline VecB to_f8(VecF v) {
  constexpr int kShift = 23 - F8::kFraction;
  const VecU bits = reinterpret_cast<VecU>(v);
  const VecU magnitude = bits & 0x7fffffffU;
  const VecU sign = bits >> 24 & 0x80U;
  const VecU normal =
      ((magnitude + ((1U << (kShift - 1)) - 1U) + (magnitude >> kShift & 1U)) >> kShift) -
      static_cast<uint32_t>((127 - F8::kBias) << F8::kFraction);
  // Steps of the least number; the sum rounds.
  const VecF steps =
      reinterpret_cast<VecF>(magnitude) * power_of_two(F8::kBias - 1 + F8::kFraction) +
      power_of_two(23);
  const VecU small = reinterpret_cast<VecU>(steps) & 0xffU;
  const VecF of_magnitude = reinterpret_cast<VecF>(magnitude);
  VecU out = of_magnitude < power_of_two(1 - F8::kBias) ? small : normal;
  out = out > F8::kMost ? splat(uint32_t{F8::kMost}) : out;
  out = v != v ? splat(uint32_t{0x7f}) : out;
  return __builtin_convertvector(out | sign, VecB);
}

}  // namespace
}  // namespace warprow::cpu
