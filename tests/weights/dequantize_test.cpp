// SPDX-License-Identifier: Apache-2.0
#include "weights/dequantize.h"

#include "base/check.h"
#include "tests/weights/gguf_blocks.h"

#include <bit>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

std::optional<TensorType> format_named(const std::string& name) {
  for (int i = 0; i < kNumValueTypes; ++i) {
    const auto format = static_cast<TensorType>(i);
    if (name == tensor_type_name(format)) {
      return format;
    }
  }
  return std::nullopt;
}

std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) {
    bits.push_back(std::bit_cast<uint32_t>(value));
  }
  return bits;
}

TEST(Dequantize, EqualsPythonBitForBit) {
  const auto records = test::load_gguf_blocks();
  ASSERT_EQ(records.size(), static_cast<size_t>(kNumValueTypes));
  for (const test::GgufBlocks& record : records) {
    const auto format = format_named(record.format);
    ASSERT_TRUE(format) << record.format;
    const auto n = static_cast<int64_t>(record.bits.size());
    ASSERT_EQ(tensor_row_bytes(*format, n), record.blocks.size()) << record.format;
    std::vector<float> values(record.bits.size());
    dequantize_row(*format, record.blocks.data(), values.data(), n);
    EXPECT_EQ(bits_of(values), record.bits) << record.format;
  }
}

TEST(Dequantize, UnalignedSourcesAndSplitRowsChangeNothing) {
  for (const test::GgufBlocks& record : test::load_gguf_blocks()) {
    const TensorType format = *format_named(record.format);
    std::vector<std::byte> shifted(record.blocks.size() + 1);
    std::copy(record.blocks.begin(), record.blocks.end(), shifted.begin() + 1);
    std::vector<float> values(record.bits.size());
    const std::byte* src = shifted.data() + 1;
    for (size_t begin = 0; begin < values.size(); begin += 256) {
      dequantize_row(format, src, values.data() + begin, 256);
      src += tensor_row_bytes(format, 256);
    }
    EXPECT_EQ(bits_of(values), record.bits) << record.format;
  }
}

TEST(Dequantize, PartialBlocksAreOurMistake) {
  const std::vector<std::byte> src(64);
  std::vector<float> dst(64);
  const ScopedCheckThrows throws;
  EXPECT_THROW(dequantize_row(TensorType::kQ4_0, src.data(), dst.data(), 33), CheckFailure);
}

}  // namespace
}  // namespace warprow
