// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"

#include <bit>
#include <cstddef>
#include <cstdint>

namespace warprow {

// Element types of activations, KV and plain weights. Quantised weight formats are in weights/. The 8-bit floats are
// those of the KV cache, which has scales beside them.
enum class DType : uint8_t { kF32, kF16, kBF16, kI8, kU8, kI32, kI64, kF8E4M3, kF8E5M2 };

constexpr bool is_f8(DType t) { return t == DType::kF8E4M3 || t == DType::kF8E5M2; }
// The largest number of such a type.
constexpr float most_of_f8(DType t) { return t == DType::kF8E4M3 ? 448.0F : 57344.0F; }

constexpr size_t dtype_bytes(DType t) {
  switch (t) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kI8:
    case DType::kU8:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return 1;
    case DType::kI64:
      return 8;
  }
  return 0;
}

constexpr const char* dtype_name(DType t) {
  switch (t) {
    case DType::kF32:
      return "float32";
    case DType::kF16:
      return "float16";
    case DType::kBF16:
      return "bfloat16";
    case DType::kI8:
      return "int8";
    case DType::kU8:
      return "uint8";
    case DType::kI32:
      return "int32";
    case DType::kI64:
      return "int64";
    case DType::kF8E4M3:
      return "fp8_e4m3";
    case DType::kF8E5M2:
      return "fp8_e5m2";
  }
  return "?";
}

// bf16 is the upper half of an f32; rounding is to nearest, ties to even; NaN stays NaN.
WR_HD inline float bf16_to_f32(uint16_t h) {
  return std::bit_cast<float>(static_cast<uint32_t>(h) << 16);
}
WR_HD inline uint16_t f32_to_bf16(float f) {
  const auto u = std::bit_cast<uint32_t>(f);
  if ((u & 0x7fffffffU) > 0x7f800000U) {
    return static_cast<uint16_t>((u >> 16) | 0x40U);
  }
  return static_cast<uint16_t>((u + 0x7fffU + ((u >> 16) & 1U)) >> 16);
}

// IEEE half to f32, exact, subnormals included.
WR_HD inline float f16_to_f32(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000U) << 16;
  const uint32_t exp = (h >> 10) & 0x1fU;
  const uint32_t man = h & 0x3ffU;
  if (exp == 0x1f) {
    return std::bit_cast<float>(sign | 0x7f800000U | (man << 13));
  }
  if (exp == 0) {
    const float f = static_cast<float>(man) * 5.9604644775390625e-08F;  // man * 2^-24
    return std::bit_cast<float>(std::bit_cast<uint32_t>(f) | sign);
  }
  return std::bit_cast<float>(sign | ((exp + 112) << 23) | (man << 13));
}

}  // namespace warprow
