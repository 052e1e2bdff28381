// SPDX-License-Identifier: Apache-2.0
#include "weights/quant_groups.h"

#include "base/check.h"
#include "base/dtype.h"
#include "tests/support/byte_writer.h"
#include "tests/weights/gguf_blocks.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

struct Expected {
  TensorType format;
  GroupTraits traits;
  int min_q;
  int max_q;
};
const std::vector<Expected> kExpected{
    {TensorType::kQ8_0, {8, 0, 32, false, true}, -128, 127},
    {TensorType::kQ4_0, {4, 8, 32, false, true}, -8, 7},
    {TensorType::kQ4_1, {4, 0, 32, true, true}, 0, 15},
    {TensorType::kQ5_0, {5, 16, 32, false, true}, -16, 15},
    {TensorType::kQ5_1, {5, 0, 32, true, true}, 0, 31},
    {TensorType::kQ4_K, {4, 0, 32, true, false}, 0, 15},
    {TensorType::kQ5_K, {5, 0, 32, true, false}, 0, 31},
    {TensorType::kQ6_K, {6, 32, 16, false, false}, -32, 31},
    {TensorType::kMXFP4, {4, 0, 32, false, false}, -12, 12},
    {TensorType::kQ2_K, {2, 0, 16, true, false}, 0, 3},
    {TensorType::kQ3_K, {3, 4, 16, false, false}, -4, 3},
    {TensorType::kIQ4_NL, {8, 0, 32, false, true}, -127, 113},
    {TensorType::kIQ4_XS, {8, 0, 32, false, false}, -127, 113},
    {TensorType::kIQ3_XXS, {6, 32, 32, false, false}, -31, 31},
    {TensorType::kIQ3_S, {5, 16, 32, false, false}, -15, 15},
    {TensorType::kIQ2_XXS, {8, 0, 32, false, false}, -43, 43},
    {TensorType::kIQ2_XS, {8, 0, 16, false, false}, -43, 43},
    {TensorType::kIQ2_S, {8, 0, 16, false, false}, -43, 43},
    {TensorType::kIQ1_S, {5, 16, 32, false, false}, -9, 9},
    {TensorType::kIQ1_M, {5, 16, 16, false, false}, -9, 9},
};

// The reference blocks of the format.
test::GgufBlocks blocks_of(TensorType format) {
  for (test::GgufBlocks& record : test::load_gguf_blocks()) {
    if (record.format == tensor_type_name(format)) {
      return std::move(record);
    }
  }
  return {};
}

struct Decoded {
  std::vector<int8_t> q;
  std::vector<float> scale;
  std::vector<float> bias;
};
Decoded decode(TensorType format, const test::GgufBlocks& record) {
  const auto n = record.bits.size();
  const auto groups = n / static_cast<size_t>(group_traits(format).group);
  Decoded out{std::vector<int8_t>(n), std::vector<float>(groups), std::vector<float>(groups)};
  decode_groups(format,
                record.blocks.data(),
                static_cast<int64_t>(n),
                out.q.data(),
                out.scale.data(),
                out.bias.data());
  return out;
}

TEST(QuantGroups, TraitsHoldForTheDecodedValues) {
  for (const Expected& expected : kExpected) {
    const std::string name = tensor_type_name(expected.format);
    const GroupTraits& traits = group_traits(expected.format);
    EXPECT_EQ(traits.bits, expected.traits.bits) << name;
    EXPECT_EQ(traits.zero_point, expected.traits.zero_point) << name;
    EXPECT_EQ(traits.group, expected.traits.group) << name;
    EXPECT_EQ(traits.group, tensor_type_traits(expected.format).group) << name;
    EXPECT_EQ(traits.has_bias, expected.traits.has_bias) << name;
    EXPECT_EQ(traits.f16_exact, expected.traits.f16_exact) << name;

    const Decoded decoded = decode(expected.format, blocks_of(expected.format));
    const auto [min, max] = std::minmax_element(decoded.q.begin(), decoded.q.end());
    EXPECT_EQ(*min, expected.min_q) << name;  // 1,280 random elements reach both limits
    EXPECT_EQ(*max, expected.max_q) << name;
    if (traits.bits < 8 && expected.format != TensorType::kMXFP4) {
      EXPECT_GE(*min + traits.zero_point, 0) << name;
      EXPECT_LT(*max + traits.zero_point, 1 << traits.bits) << name;
    }
    if (traits.numbers != nullptr) {
      EXPECT_TRUE(std::all_of(decoded.q.begin(), decoded.q.end(), [&](int8_t q) {
        return std::find(traits.numbers, traits.numbers + 16, q) != traits.numbers + 16;
      })) << name;
    }
    for (size_t g = 0; g < decoded.scale.size() && traits.f16_exact; ++g) {
      EXPECT_EQ(f16_to_f32(test::f32_to_f16(decoded.scale[g])), decoded.scale[g]) << name;
      EXPECT_EQ(f16_to_f32(test::f32_to_f16(decoded.bias[g])), decoded.bias[g]) << name;
    }
  }
}

TEST(QuantGroups, ScaleTimesQPlusBiasIsTheWeightBitForBit) {
  for (const Expected& expected : kExpected) {
    const test::GgufBlocks record = blocks_of(expected.format);
    const Decoded decoded = decode(expected.format, record);
    const auto group = static_cast<size_t>(expected.traits.group);
    for (size_t i = 0; i < record.bits.size(); ++i) {
      const float product = decoded.scale[i / group] * static_cast<float>(decoded.q[i]);
      ASSERT_EQ(std::bit_cast<uint32_t>(product + decoded.bias[i / group]), record.bits[i])
          << tensor_type_name(expected.format) << " element " << i;
      if (!expected.traits.has_bias) {
        ASSERT_EQ(std::bit_cast<uint32_t>(product), record.bits[i]) << "without the bias";
      }
    }
  }
}

TEST(QuantGroups, SplitScalesMultiplyToTheScales) {
  for (const TensorType format : {TensorType::kQ4_K,
                                  TensorType::kQ5_K,
                                  TensorType::kQ6_K,
                                  TensorType::kQ2_K,
                                  TensorType::kQ3_K,
                                  TensorType::kIQ4_XS,
                                  TensorType::kIQ3_XXS,
                                  TensorType::kIQ3_S,
                                  TensorType::kIQ2_XXS,
                                  TensorType::kIQ2_XS,
                                  TensorType::kIQ2_S,
                                  TensorType::kIQ1_S,
                                  TensorType::kIQ1_M}) {
    const test::GgufBlocks record = blocks_of(format);
    const Decoded decoded = decode(format, record);
    const auto n = record.bits.size();
    const size_t groups = 256 / static_cast<size_t>(group_traits(format).group);
    std::vector<uint16_t> scale_half(n / 256);
    std::vector<uint16_t> bias_half(n / 256);
    std::vector<int8_t> scale_factor(decoded.scale.size());
    std::vector<int8_t> bias_factor(decoded.scale.size());
    split_scales(format,
                 record.blocks.data(),
                 static_cast<int64_t>(n),
                 {scale_half.data(), scale_factor.data(), bias_half.data(), bias_factor.data()});
    for (size_t g = 0; g < decoded.scale.size(); ++g) {
      const auto product = [&](const auto& half, const auto& factor) {
        const float unit = &half == &scale_half ? group_traits(format).unit : 1.0F;
        return std::bit_cast<uint32_t>(unit * f16_to_f32(half[g / groups]) *
                                       static_cast<float>(factor[g]));
      };
      ASSERT_EQ(product(scale_half, scale_factor), std::bit_cast<uint32_t>(decoded.scale[g]));
      if (group_traits(format).has_bias) {
        ASSERT_EQ(product(bias_half, bias_factor), std::bit_cast<uint32_t>(decoded.bias[g]));
      }
    }
  }
  const ScopedCheckThrows throws;
  EXPECT_THROW(split_scales(TensorType::kQ4_0, nullptr, 0, {}), CheckFailure);
}

TEST(QuantGroups, TheBiasMayBeLeftOutWhereThereIsNone) {
  const test::GgufBlocks record = blocks_of(TensorType::kQ6_K);
  const Decoded full = decode(TensorType::kQ6_K, record);
  const auto n = static_cast<int64_t>(record.bits.size());
  std::vector<int8_t> q(full.q.size());
  std::vector<float> scale(full.scale.size());
  decode_groups(TensorType::kQ6_K, record.blocks.data(), n, q.data(), scale.data(), nullptr);
  EXPECT_EQ(q, full.q);
  EXPECT_EQ(scale, full.scale);

  const ScopedCheckThrows throws;
  EXPECT_THROW(
      decode_groups(TensorType::kQ4_1, record.blocks.data(), 32, q.data(), scale.data(), nullptr),
      CheckFailure);
  EXPECT_THROW(group_traits(TensorType::kBF16), CheckFailure);
}

}  // namespace
}  // namespace warprow
