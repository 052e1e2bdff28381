// SPDX-License-Identifier: Apache-2.0
#include "files/gguf_types.h"

#include <array>
#include <cstddef>

namespace warprow {
namespace {

using enum GgmlType;

constexpr std::array<GgmlTypeTraits, 34> kTraits{{
    {kF32, "F32", 1, 4},
    {kF16, "F16", 1, 2},
    {kQ4_0, "Q4_0", 32, 18},
    {kQ4_1, "Q4_1", 32, 20},
    {kQ5_0, "Q5_0", 32, 22},
    {kQ5_1, "Q5_1", 32, 24},
    {kQ8_0, "Q8_0", 32, 34},
    {kQ8_1, "Q8_1", 32, 40},
    {kQ2_K, "Q2_K", 256, 84},
    {kQ3_K, "Q3_K", 256, 110},
    {kQ4_K, "Q4_K", 256, 144},
    {kQ5_K, "Q5_K", 256, 176},
    {kQ6_K, "Q6_K", 256, 210},
    {kQ8_K, "Q8_K", 256, 292},
    {kIQ2_XXS, "IQ2_XXS", 256, 66},
    {kIQ2_XS, "IQ2_XS", 256, 74},
    {kIQ3_XXS, "IQ3_XXS", 256, 98},
    {kIQ1_S, "IQ1_S", 256, 50},
    {kIQ4_NL, "IQ4_NL", 32, 18},
    {kIQ3_S, "IQ3_S", 256, 110},
    {kIQ2_S, "IQ2_S", 256, 82},
    {kIQ4_XS, "IQ4_XS", 256, 136},
    {kI8, "I8", 1, 1},
    {kI16, "I16", 1, 2},
    {kI32, "I32", 1, 4},
    {kI64, "I64", 1, 8},
    {kF64, "F64", 1, 8},
    {kIQ1_M, "IQ1_M", 256, 56},
    {kBF16, "BF16", 1, 2},
    {kTQ1_0, "TQ1_0", 256, 54},
    {kTQ2_0, "TQ2_0", 256, 66},
    {kMXFP4, "MXFP4", 32, 17},
    {kNVFP4, "NVFP4", 64, 36},
    {kQ1_0, "Q1_0", 128, 18},
}};

struct ValueTypeTraits {
  const char* name;
  int bytes;
};
constexpr std::array<ValueTypeTraits, 13> kValueTypes{{
    {"uint8", 1},
    {"int8", 1},
    {"uint16", 2},
    {"int16", 2},
    {"uint32", 4},
    {"int32", 4},
    {"float32", 4},
    {"bool", 1},
    {"string", 0},
    {"array", 0},
    {"uint64", 8},
    {"int64", 8},
    {"float64", 8},
}};

}  // namespace

const GgmlTypeTraits* ggml_type_traits(GgmlType type) {
  for (const GgmlTypeTraits& traits : kTraits) {
    if (traits.type == type) {
      return &traits;
    }
  }
  return nullptr;
}

int gguf_value_bytes(GgufValueType type) {
  const auto i = static_cast<size_t>(type);
  return i < kValueTypes.size() ? kValueTypes[i].bytes : 0;
}

const char* gguf_value_type_name(GgufValueType type) {
  const auto i = static_cast<size_t>(type);
  return i < kValueTypes.size() ? kValueTypes[i].name : "?";
}

}  // namespace warprow
