// SPDX-License-Identifier: Apache-2.0
#include "weights/weight_format.h"

#include "base/check.h"

#include <string>

#include <gtest/gtest.h>

namespace warprow {
namespace {

TEST(WeightFormat, AgreesWithTheContainers) {
  int found = 0;
  for (uint32_t i = 0; i < 64; ++i) {
    const GgmlTypeTraits* ggml = ggml_type_traits(GgmlType{i});
    const auto format = weight_format_of(GgmlType{i});
    if (!format) {
      continue;
    }
    ++found;
    ASSERT_NE(ggml, nullptr);
    const WeightFormatTraits& traits = weight_format_traits(*format);
    EXPECT_EQ(std::string(traits.name), ggml->name);
    EXPECT_EQ(traits.block_elems, ggml->block_elems) << traits.name;
    EXPECT_EQ(traits.block_bytes, ggml->block_bytes) << traits.name;
    EXPECT_EQ(is_quantised(*format), traits.group != 0);
    EXPECT_EQ(is_quantised(*format), traits.block_elems > 1);
  }
  EXPECT_EQ(found, kNumWeightFormats);
  EXPECT_EQ(weight_format_of(GgmlType::kIQ4_XS), std::nullopt);
  EXPECT_EQ(weight_format_of(SafetensorsDtype::kBF16), WeightFormat::kBF16);
  EXPECT_EQ(weight_format_of(SafetensorsDtype::kI64), std::nullopt);
}

TEST(WeightFormat, RowBytes) {
  EXPECT_EQ(weight_row_bytes(WeightFormat::kQ4_1, 576), 360U);
  EXPECT_EQ(weight_row_bytes(WeightFormat::kQ6_K, 512), 420U);
  EXPECT_EQ(weight_row_bytes(WeightFormat::kF16, 3), 6U);
  const ScopedCheckThrows throws;
  EXPECT_THROW(weight_row_bytes(WeightFormat::kQ4_1, 33), CheckFailure);
}

}  // namespace
}  // namespace warprow
