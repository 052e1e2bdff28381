// SPDX-License-Identifier: Apache-2.0
#include "weights/tensor_type.h"

#include "base/check.h"

#include <string>

#include <gtest/gtest.h>

namespace warprow {
namespace {

TEST(TensorType, AgreesWithTheContainers) {
  int found = 0;
  for (uint32_t i = 0; i < 64; ++i) {
    const GgmlTypeTraits* ggml = ggml_type_traits(GgmlType{i});
    const auto type = tensor_type_of(GgmlType{i});
    if (!type) {
      continue;
    }
    ++found;
    ASSERT_NE(ggml, nullptr);
    const TensorTypeTraits& traits = tensor_type_traits(*type);
    EXPECT_EQ(std::string(traits.name), ggml->name);
    EXPECT_EQ(traits.block_elems, ggml->block_elems) << traits.name;
    EXPECT_EQ(traits.block_bytes, ggml->block_bytes) << traits.name;
    EXPECT_EQ(is_quantised(*type), traits.group != 0);
    EXPECT_EQ(is_quantised(*type), traits.block_elems > 1);
  }
  EXPECT_EQ(found, kNumValueTypes);
  EXPECT_EQ(tensor_type_of(GgmlType::kTQ1_0), std::nullopt);
  EXPECT_EQ(tensor_type_of(SafetensorsDtype::kBF16), TensorType::kBF16);
  EXPECT_EQ(tensor_type_of(SafetensorsDtype::kF64), std::nullopt);
}

TEST(TensorType, AgreesWithSafetensors) {
  int found = 0;
  for (int i = 0; i <= static_cast<int>(SafetensorsDtype::kC64); ++i) {
    const auto dtype = static_cast<SafetensorsDtype>(i);
    const auto type = tensor_type_of(dtype);
    if (type) {
      ++found;
      EXPECT_EQ(tensor_type_name(*type), safetensors_dtype_traits(dtype).name);
      EXPECT_EQ(tensor_type_traits(*type).block_bytes * 8, safetensors_dtype_traits(dtype).bits);
    }
  }
  EXPECT_EQ(found, kNumTensorTypes - kNumValueTypes + 3);  // plus F32, F16 and BF16
}

TEST(TensorType, RowBytes) {
  EXPECT_EQ(tensor_row_bytes(TensorType::kQ4_1, 576), 360U);
  EXPECT_EQ(tensor_row_bytes(TensorType::kQ6_K, 512), 420U);
  EXPECT_EQ(tensor_row_bytes(TensorType::kF16, 3), 6U);
  const ScopedCheckThrows throws;
  EXPECT_THROW(tensor_row_bytes(TensorType::kQ4_1, 33), CheckFailure);
}

}  // namespace
}  // namespace warprow
