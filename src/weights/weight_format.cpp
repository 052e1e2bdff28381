// SPDX-License-Identifier: Apache-2.0
#include "weights/weight_format.h"

#include "base/check.h"

#include <array>

namespace warprow {
namespace {

// In the order of the enumerators.
constexpr std::array<WeightFormatTraits, kNumWeightFormats> kTraits{{
    {"F32", 1, 4, 32, 0},
    {"F16", 1, 2, 16, 0},
    {"BF16", 1, 2, 16, 0},
    {"Q8_0", 32, 34, 8, 32},
    {"Q4_0", 32, 18, 4, 32},
    {"Q4_1", 32, 20, 4, 32},
    {"Q5_0", 32, 22, 5, 32},
    {"Q5_1", 32, 24, 5, 32},
    {"Q4_K", 256, 144, 4, 32},
    {"Q5_K", 256, 176, 5, 32},
    {"Q6_K", 256, 210, 6, 16},
}};

}  // namespace

const WeightFormatTraits& weight_format_traits(WeightFormat format) {
  return kTraits[static_cast<size_t>(format)];
}

size_t weight_row_bytes(WeightFormat format, int64_t cols) {
  const WeightFormatTraits& traits = weight_format_traits(format);
  WR_CHECK_EQ(cols % traits.block_elems, 0);
  return static_cast<size_t>(cols / traits.block_elems) * static_cast<size_t>(traits.block_bytes);
}

std::optional<WeightFormat> weight_format_of(GgmlType type) {
  switch (type) {
    case GgmlType::kF32:
      return WeightFormat::kF32;
    case GgmlType::kF16:
      return WeightFormat::kF16;
    case GgmlType::kBF16:
      return WeightFormat::kBF16;
    case GgmlType::kQ8_0:
      return WeightFormat::kQ8_0;
    case GgmlType::kQ4_0:
      return WeightFormat::kQ4_0;
    case GgmlType::kQ4_1:
      return WeightFormat::kQ4_1;
    case GgmlType::kQ5_0:
      return WeightFormat::kQ5_0;
    case GgmlType::kQ5_1:
      return WeightFormat::kQ5_1;
    case GgmlType::kQ4_K:
      return WeightFormat::kQ4_K;
    case GgmlType::kQ5_K:
      return WeightFormat::kQ5_K;
    case GgmlType::kQ6_K:
      return WeightFormat::kQ6_K;
    default:
      return std::nullopt;
  }
}

std::optional<WeightFormat> weight_format_of(SafetensorsDtype dtype) {
  switch (dtype) {
    case SafetensorsDtype::kF32:
      return WeightFormat::kF32;
    case SafetensorsDtype::kF16:
      return WeightFormat::kF16;
    case SafetensorsDtype::kBF16:
      return WeightFormat::kBF16;
    default:
      return std::nullopt;
  }
}

}  // namespace warprow
