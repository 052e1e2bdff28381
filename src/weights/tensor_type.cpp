// SPDX-License-Identifier: Apache-2.0
#include "weights/tensor_type.h"

#include "base/check.h"

#include <array>

namespace warprow {
namespace {

// In the order of the enumerators.
constexpr std::array<TensorTypeTraits, kNumTensorTypes> kTraits{{
    {"F32", 1, 4, 32, 0},        {"F16", 1, 2, 16, 0},        {"BF16", 1, 2, 16, 0},
    {"Q8_0", 32, 34, 8, 32},     {"Q4_0", 32, 18, 4, 32},     {"Q4_1", 32, 20, 4, 32},
    {"Q5_0", 32, 22, 5, 32},     {"Q5_1", 32, 24, 5, 32},     {"Q4_K", 256, 144, 4, 32},
    {"Q5_K", 256, 176, 5, 32},   {"Q6_K", 256, 210, 6, 16},   {"MXFP4", 32, 17, 4, 32},
    {"Q2_K", 256, 84, 2, 16},    {"Q3_K", 256, 110, 3, 16},   {"IQ4_NL", 32, 18, 4, 32},
    {"IQ4_XS", 256, 136, 4, 32}, {"IQ3_XXS", 256, 98, 3, 32}, {"IQ3_S", 256, 110, 3, 32},
    {"IQ2_XXS", 256, 66, 2, 32}, {"IQ2_XS", 256, 74, 2, 16},  {"IQ2_S", 256, 82, 2, 16},
    {"IQ1_S", 256, 50, 1, 32},   {"IQ1_M", 256, 56, 1, 16},   {"BOOL", 1, 1, 8, 0},
    {"U8", 1, 1, 8, 0},          {"I8", 1, 1, 8, 0},          {"U16", 1, 2, 16, 0},
    {"I16", 1, 2, 16, 0},        {"U32", 1, 4, 32, 0},        {"I32", 1, 4, 32, 0},
    {"U64", 1, 8, 64, 0},        {"I64", 1, 8, 64, 0},        {"F8_E5M2", 1, 1, 8, 0},
    {"F8_E4M3", 1, 1, 8, 0},     {"F8_E8M0", 1, 1, 8, 0},
}};

}  // namespace

const TensorTypeTraits& tensor_type_traits(TensorType type) {
  return kTraits[static_cast<size_t>(type)];
}

size_t tensor_row_bytes(TensorType type, int64_t cols) {
  const TensorTypeTraits& traits = tensor_type_traits(type);
  WR_CHECK_EQ(cols % traits.block_elems, 0);
  return static_cast<size_t>(cols / traits.block_elems) * static_cast<size_t>(traits.block_bytes);
}

std::optional<TensorType> tensor_type_of(GgmlType type) {
  switch (type) {
    case GgmlType::kF32:
      return TensorType::kF32;
    case GgmlType::kF16:
      return TensorType::kF16;
    case GgmlType::kBF16:
      return TensorType::kBF16;
    case GgmlType::kQ8_0:
      return TensorType::kQ8_0;
    case GgmlType::kQ4_0:
      return TensorType::kQ4_0;
    case GgmlType::kQ4_1:
      return TensorType::kQ4_1;
    case GgmlType::kQ5_0:
      return TensorType::kQ5_0;
    case GgmlType::kQ5_1:
      return TensorType::kQ5_1;
    case GgmlType::kQ4_K:
      return TensorType::kQ4_K;
    case GgmlType::kQ5_K:
      return TensorType::kQ5_K;
    case GgmlType::kQ6_K:
      return TensorType::kQ6_K;
    case GgmlType::kMXFP4:
      return TensorType::kMXFP4;
    case GgmlType::kQ2_K:
      return TensorType::kQ2_K;
    case GgmlType::kQ3_K:
      return TensorType::kQ3_K;
    case GgmlType::kIQ4_NL:
      return TensorType::kIQ4_NL;
    case GgmlType::kIQ4_XS:
      return TensorType::kIQ4_XS;
    case GgmlType::kIQ3_XXS:
      return TensorType::kIQ3_XXS;
    case GgmlType::kIQ3_S:
      return TensorType::kIQ3_S;
    case GgmlType::kIQ2_XXS:
      return TensorType::kIQ2_XXS;
    case GgmlType::kIQ2_XS:
      return TensorType::kIQ2_XS;
    case GgmlType::kIQ2_S:
      return TensorType::kIQ2_S;
    case GgmlType::kIQ1_S:
      return TensorType::kIQ1_S;
    case GgmlType::kIQ1_M:
      return TensorType::kIQ1_M;
    default:
      return std::nullopt;
  }
}

std::optional<TensorType> tensor_type_of(SafetensorsDtype dtype) {
  switch (dtype) {
    case SafetensorsDtype::kF32:
      return TensorType::kF32;
    case SafetensorsDtype::kF16:
      return TensorType::kF16;
    case SafetensorsDtype::kBF16:
      return TensorType::kBF16;
    case SafetensorsDtype::kBool:
      return TensorType::kBool;
    case SafetensorsDtype::kU8:
      return TensorType::kU8;
    case SafetensorsDtype::kI8:
      return TensorType::kI8;
    case SafetensorsDtype::kU16:
      return TensorType::kU16;
    case SafetensorsDtype::kI16:
      return TensorType::kI16;
    case SafetensorsDtype::kU32:
      return TensorType::kU32;
    case SafetensorsDtype::kI32:
      return TensorType::kI32;
    case SafetensorsDtype::kU64:
      return TensorType::kU64;
    case SafetensorsDtype::kI64:
      return TensorType::kI64;
    case SafetensorsDtype::kF8E5M2:
      return TensorType::kF8E5M2;
    case SafetensorsDtype::kF8E4M3:
      return TensorType::kF8E4M3;
    case SafetensorsDtype::kF8E8M0:
      return TensorType::kF8E8M0;
    case SafetensorsDtype::kF4:
    case SafetensorsDtype::kF6E2M3:
    case SafetensorsDtype::kF6E3M2:
    case SafetensorsDtype::kF64:
    case SafetensorsDtype::kC64:
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace warprow
