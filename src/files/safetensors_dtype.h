// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace warprow {

// Element types of safetensors. Types that warprow cannot compute with parse as well; they are refused on use.
enum class SafetensorsDtype : uint8_t {
  kBool,
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kU64,
  kI64,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF16,
  kBF16,
  kF32,
  kF64,
  kC64,
};

struct SafetensorsDtypeTraits {
  SafetensorsDtype dtype;
  std::string_view name;  // as in the header
  int bits;
};

const SafetensorsDtypeTraits& safetensors_dtype_traits(SafetensorsDtype dtype);
// nullopt for an unknown name.
std::optional<SafetensorsDtype> safetensors_dtype_from_name(std::string_view name);

}  // namespace warprow
