// SPDX-License-Identifier: Apache-2.0
#include "files/safetensors_dtype.h"

#include <array>
#include <cstddef>

namespace warprow {
namespace {

using enum SafetensorsDtype;

// In the order of the enumerators.
constexpr std::array<SafetensorsDtypeTraits, 20> kTraits{{
    {kBool, "BOOL", 8},      {kU8, "U8", 8},          {kI8, "I8", 8},
    {kU16, "U16", 16},       {kI16, "I16", 16},       {kU32, "U32", 32},
    {kI32, "I32", 32},       {kU64, "U64", 64},       {kI64, "I64", 64},
    {kF4, "F4", 4},          {kF6E2M3, "F6_E2M3", 6}, {kF6E3M2, "F6_E3M2", 6},
    {kF8E5M2, "F8_E5M2", 8}, {kF8E4M3, "F8_E4M3", 8}, {kF8E8M0, "F8_E8M0", 8},
    {kF16, "F16", 16},       {kBF16, "BF16", 16},     {kF32, "F32", 32},
    {kF64, "F64", 64},       {kC64, "C64", 64},
}};

constexpr bool in_order() {
  for (size_t i = 0; i < kTraits.size(); ++i) {
    if (static_cast<size_t>(kTraits[i].dtype) != i) {
      return false;
    }
  }
  return true;
}
static_assert(in_order());

}  // namespace

const SafetensorsDtypeTraits& safetensors_dtype_traits(SafetensorsDtype dtype) {
  return kTraits[static_cast<size_t>(dtype)];
}

std::optional<SafetensorsDtype> safetensors_dtype_from_name(std::string_view name) {
  for (const SafetensorsDtypeTraits& traits : kTraits) {
    if (traits.name == name) {
      return traits.dtype;
    }
  }
  return std::nullopt;
}

}  // namespace warprow
