// SPDX-License-Identifier: Apache-2.0
// Layouts of quantised checkpoints, each with the mistake that it invites, and files that lie.
#include "weights/quant_matrix.h"

#include "base/dtype.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_dir.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <ranges>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::Bytes;
using test::SafetensorsWriter;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Bytes words(const std::vector<uint32_t>& values) {
  Bytes out;
  for (const uint32_t v : values) {
    test::put(out, v);
  }
  return out;
}
Bytes halves(const std::vector<float>& values) {
  Bytes out;
  for (const float v : values) {
    test::put(out, test::f32_to_f16(v));
  }
  return out;
}
Bytes f8(const std::vector<uint8_t>& values) {
  Bytes out;
  for (const uint8_t v : values) {
    test::put(out, v);
  }
  return out;
}

constexpr const char* kFp8 = R"({"quant_method": "fp8", "weight_block_size": [2, 4]})";
constexpr const char* kAwq =
    R"({"quant_method": "awq", "bits": 4, "group_size": 2, "version": "gemm"})";
constexpr const char* kGptq = R"({"quant_method": "gptq", "bits": 4, "group_size": 8})";
constexpr const char* kGptqV2 =
    R"({"quant_method": "gptq", "bits": 4, "group_size": 8, "checkpoint_format": "gptq_v2"})";
constexpr const char* kPacked =
    R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"g": {"weights": {"num_bits": 4, "type": "int"}}}})";

class QuantMatrixTest : public ::testing::Test {
 protected:
  Result<std::unique_ptr<QuantMatrix>> open(const std::string& config,
                                            const SafetensorsWriter& tensors,
                                            int64_t rows,
                                            int64_t cols) {
    dir_.write("config.json", R"({"quantization_config": )" + config + "}");
    dir_.write("model.safetensors", tensors.bytes());
    Result<Checkpoint> opened =
        Checkpoint::open({ModelFiles::Kind::kHfDir, dir_.path().string(), "m"});
    if (!opened) {
      return tl::unexpected(opened.error());
    }
    checkpoint_ = std::make_unique<Checkpoint>(*std::move(opened));
    return find_quant_matrix(*checkpoint_, "m.weight", rows, cols);
  }
  std::vector<float> values(const std::string& config,
                            const SafetensorsWriter& tensors,
                            int64_t rows,
                            int64_t cols) {
    const auto matrix = value_or_throw(open(config, tensors, rows, cols));
    const QuantPart all{0, rows, 0, cols};
    QuantBuffers buffers;
    buffers.resize(matrix->form(), all);
    matrix->read(all, buffers);
    std::vector<float> out(static_cast<size_t>(rows * cols));
    dequantise(matrix->form(), all, buffers, out.data());
    return out;
  }
  std::string refusal(const std::string& config,
                      const SafetensorsWriter& tensors,
                      int64_t rows,
                      int64_t cols) {
    const auto opened = open(config, tensors, rows, cols);
    return opened ? "" : opened.error().message;
  }

  test::TempDir dir_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

// e4m3: 0x38 is 1, 0xc0 is -2, 0x01 is 2^-9.
TEST_F(QuantMatrixTest, WeightScaleInvMultiplies) {
  SafetensorsWriter w;
  w.add("m.weight",
        "F8_E4M3",
        {2, 6},
        f8({0x38, 0xc0, 1, 0, 0x38, 0x38, 0xb8, 0x40, 0, 0, 0x38, 0xc0}));
  w.add_f32("m.weight_scale_inv", {1, 2}, std::vector<float>{4.0F, 8.0F});
  EXPECT_THAT(values(kFp8, w, 2, 6), ElementsAre(4, -8, 4.0F / 512, 0, 8, 8, -4, 8, 0, 0, 8, -16));
}

// Two scales, which could also be those of two blocks of 128 columns.
TEST_F(QuantMatrixTest, AVectorOfScalesIsOfRowsWhereNoBlocksAreStated) {
  SafetensorsWriter w;
  w.add("m.weight", "F8_E4M3", {2, 256}, f8(std::vector<uint8_t>(512, 0x38)));
  w.add_f32("m.weight_scale", {2}, std::vector<float>{4.0F, 8.0F});
  const std::vector<float> got =
      values(R"({"quant_method": "compressed-tensors", "format": "float-quantized"})", w, 2, 256);
  EXPECT_EQ(std::ranges::count(got | std::views::take(256), 4.0F), 256);
  EXPECT_EQ(std::ranges::count(got | std::views::drop(256), 8.0F), 256);
}

TEST_F(QuantMatrixTest, InputsAreRoundedAsTheSchemeSays) {
  SafetensorsWriter rows;
  rows.add("m.weight", "F8_E4M3", {2, 256}, f8(std::vector<uint8_t>(512, 0x38)));
  rows.add_f32("m.weight_scale", {2, 1}, std::vector<float>{4.0F, 8.0F});
  SafetensorsWriter fixed = rows;
  fixed.add_f32("m.input_scale", {1}, std::vector<float>{0.25F});
  SafetensorsWriter blocks;
  blocks.add("m.weight", "F8_E4M3", {2, 256}, f8(std::vector<uint8_t>(512, 0x38)));
  blocks.add_f32("m.weight_scale_inv", {1, 2}, std::vector<float>{4.0F, 8.0F});
  const auto inputs = [&](const std::string& config, const SafetensorsWriter& w) {
    return value_or_throw(open(config, w, 2, 256))->form().inputs;
  };
  const auto compressed = [](const std::string& activations) {
    return R"({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float"}, "input_activations": )" +
           activations + "}}}";
  };
  EXPECT_EQ(inputs(R"({"quant_method": "fp8"})", rows), F8Inputs::kRow);
  EXPECT_EQ(inputs(R"({"quant_method": "fp8", "weight_block_size": [128, 128]})", blocks),
            F8Inputs::kGroup);
  EXPECT_EQ(inputs(R"({"quant_method": "fp8", "activation_scheme": "static"})", fixed),
            F8Inputs::kStatic);
  EXPECT_EQ(inputs(compressed("null"), rows), F8Inputs::kNone);
  EXPECT_EQ(inputs(compressed(R"({"num_bits": 8, "type": "float", "dynamic": true})"), rows),
            F8Inputs::kRow);
  EXPECT_EQ(inputs(compressed(R"({"num_bits": 8, "type": "float", "dynamic": false})"), fixed),
            F8Inputs::kStatic);
  const auto matrix =
      value_or_throw(open(R"({"quant_method": "modelopt", "quant_algo": "FP8"})", fixed, 2, 256));
  EXPECT_EQ(matrix->form().inputs, F8Inputs::kStatic);
  EXPECT_EQ(matrix->form().input_scale, 0.25F);
}

TEST_F(QuantMatrixTest, RefusesScalesOfInputsThatAreMissingOrNotPositive) {
  SafetensorsWriter w;
  w.add("m.weight", "F8_E4M3", {2, 6}, Bytes(12));
  w.add_f32("m.weight_scale", {1}, std::vector<float>{1.0F});
  const std::string config = R"({"quant_method": "fp8", "activation_scheme": "static"})";
  EXPECT_THAT(refusal(config, w, 2, 6), HasSubstr("m.input_scale"));
  w.add_f32("m.input_scale", {1}, std::vector<float>{0.0F});
  EXPECT_THAT(refusal(config, w, 2, 6), HasSubstr("m.input_scale is [1, 1] with the scale 0"));
  EXPECT_THAT(refusal(R"({"quant_method": "fp8", "activation_scheme": "token"})", w, 2, 6),
              HasSubstr("activation_scheme 'token'"));
}

TEST_F(QuantMatrixTest, AwqInterleavesOutputsInAWord) {
  // Nibble i of a word is output (0, 2, 4, 6, 1, 3, 5, 7)[i]: output j of input 0 has the number j here.
  SafetensorsWriter w;
  w.add("m.qweight", "I32", {2, 1}, words({0x75316420, 0x88888888}));
  w.add("m.qzeros", "I32", {1, 1}, words({0x00000001}));  // of output 0
  w.add("m.scales", "F16", {1, 8}, halves({1, 1, 1, 1, 1, 1, 1, 0.5F}));
  EXPECT_THAT(values(kAwq, w, 8, 2),
              ElementsAre(-1, 7, 1, 8, 2, 8, 3, 8, 4, 8, 5, 8, 6, 8, 3.5F, 4));
}

TEST_F(QuantMatrixTest, GptqStoresZerosLessOneInItsFirstVersion) {
  SafetensorsWriter w;
  std::vector<uint32_t> numbers(8, 0x76543210);  // inputs 0 to 7 of each output
  w.add("m.qweight", "I32", {1, 8}, words(numbers));
  w.add("m.qzeros", "I32", {1, 1}, words({0xf7777777}));  // the last one wraps around: 0
  w.add("m.scales", "F16", {1, 8}, halves(std::vector<float>(8, 1.0F)));
  std::vector<float> first = values(kGptq, w, 8, 8);
  EXPECT_EQ(first[0], -8.0F);
  EXPECT_EQ(first[1], -7.0F);
  EXPECT_EQ(first[7 * 8 + 3], 3.0F);
  const std::vector<float> second = values(kGptqV2, w, 8, 8);
  EXPECT_EQ(second[0], -7.0F);
  EXPECT_EQ(second[7 * 8 + 3], -12.0F);
}

TEST_F(QuantMatrixTest, GptqActOrderTakesEachInputsGroup) {
  SafetensorsWriter w;
  w.add("m.qweight", "I32", {2, 8}, words(std::vector<uint32_t>(16, 0x99999999)));
  w.add("m.qzeros", "I32", {2, 1}, words({0x77777777, 0x77777777}));
  std::vector<float> scales(8, 1.0F);
  scales.resize(16, 4.0F);  // of group 1
  w.add("m.scales", "F16", {2, 8}, halves(scales));
  std::vector<uint32_t> order(16);
  for (uint32_t i = 0; i < 16; ++i) {
    order[i] = (i + 1) % 2;
  }
  SafetensorsWriter lies = w;
  w.add("m.g_idx", "I32", {16}, words(order));
  const std::vector<float> got = values(kGptq, w, 8, 16);
  EXPECT_EQ(got[0], 4.0F);
  EXPECT_EQ(got[1], 1.0F);
  order[3] = 2;
  lies.add("m.g_idx", "I32", {16}, words(order));
  EXPECT_THAT(refusal(kGptq, lies, 8, 16),
              HasSubstr("m.g_idx: element 3 is 2, there are 2 groups"));
}

TEST_F(QuantMatrixTest, PackedZeroPointsLieAlongOutputs) {
  SafetensorsWriter w;
  w.add("m.weight_packed", "I32", {2, 1}, words({0x88888888, 0x88888888}));
  w.add("m.weight_scale", "F16", {2, 1}, halves({1, 2}));
  w.add("m.weight_zero_point", "I32", {1, 1}, words({0x00000057}));  // output 0: 7, output 1: 5
  EXPECT_THAT(values(kPacked, w, 2, 8),
              ElementsAre(1, 1, 1, 1, 1, 1, 1, 1, 6, 6, 6, 6, 6, 6, 6, 6));
}

TEST_F(QuantMatrixTest, KnowsScalesThatAreBf16) {
  for (const bool bf16 : {true, false}) {
    SafetensorsWriter w;
    w.add("m.weight_packed", "I32", {2, 1}, words({0x88888888, 0x88888888}));
    if (bf16) {
      w.add("m.weight_scale", "BF16", {2, 1}, words({0x40003f80}));  // 1, 2
    } else {
      w.add("m.weight_scale", "F16", {2, 1}, halves({1, 2}));
    }
    const auto matrix = value_or_throw(open(kPacked, w, 2, 8));
    EXPECT_EQ(matrix->form().bf16_scales, bf16);
    EXPECT_TRUE(matrix->form().half_scales);
  }
}

TEST_F(QuantMatrixTest, RefusesShapesThatLie) {
  SafetensorsWriter w;
  w.add("m.weight", "F8_E4M3", {2, 6}, Bytes(12));
  SafetensorsWriter no_scale = w;
  EXPECT_THAT(refusal(kFp8, no_scale, 2, 6), HasSubstr("m.weight_scale"));
  w.add_f32("m.weight_scale_inv", {3, 2}, std::vector<float>(6, 1.0F));
  EXPECT_THAT(refusal(kFp8, w, 2, 6),
              AllOf(HasSubstr("m.weight_scale_inv is [3, 2]"), HasSubstr("each block of 2 x 4")));
  EXPECT_THAT(refusal(kFp8, w, 2, 8), HasSubstr("m.weight is [2, 6], its weight wants [2, 8]"));

  SafetensorsWriter packed;
  packed.add("m.weight_packed", "I32", {2, 1}, words({0, 0}));
  packed.add("m.weight_scale", "F16", {2, 3}, halves(std::vector<float>(6, 1.0F)));
  EXPECT_THAT(refusal(kPacked, packed, 2, 8), HasSubstr("m.weight_scale is [2, 3]"));

  SafetensorsWriter gptq;
  gptq.add("m.qweight", "I32", {1, 8}, words(std::vector<uint32_t>(8)));
  gptq.add("m.qzeros", "I32", {2, 1}, words({0, 0}));
  gptq.add("m.scales", "F16", {1, 8}, halves(std::vector<float>(8, 1.0F)));
  EXPECT_THAT(refusal(kGptq, gptq, 8, 8), HasSubstr("m.qzeros is [2, 1], its weight wants [1, 1]"));
}

TEST_F(QuantMatrixTest, RefusesScalesThatAreNoNumbers) {
  SafetensorsWriter w;
  w.add("m.weight", "F8_E4M3", {2, 6}, Bytes(12));
  w.add("m.weight_scale", "BF16", {2, 1}, words({0x7f803f80}));  // 1, infinite
  EXPECT_THAT(refusal(kFp8, w, 2, 6), HasSubstr("m.weight_scale: scale [1, 0] is inf"));
}

TEST_F(QuantMatrixTest, RefusesOtherMethodsByName) {
  const SafetensorsWriter w;
  const auto refused = [&](const std::string& config) { return refusal(config, w, 2, 6); };
  EXPECT_THAT(refused(R"({"quant_method": "hqq"})"),
              AllOf(HasSubstr("quant_method 'hqq'"), HasSubstr("awq, compressed-tensors, fp8")));
  EXPECT_THAT(refused(R"({"quant_method": "gptq", "bits": 3})"), HasSubstr("bits is 3; 4 and 8"));
  EXPECT_THAT(refused(R"({"quant_method": "awq", "version": "gemv"})"),
              HasSubstr("version 'gemv'"));
  EXPECT_THAT(refused(R"({"quant_method": "gptq", "group_size": 0})"),
              HasSubstr("group_size is 0"));
  EXPECT_THAT(refused(R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})"),
              HasSubstr("'NVFP4'"));
  EXPECT_THAT(
      refused(R"({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"})"),
      HasSubstr("'nvfp4-pack-quantized'"));
  EXPECT_THAT(refused(R"({"quant_method": "fp8", "weight_block_size": [0, 128]})"),
              HasSubstr("weight_block_size is '[0,128]'"));
}

}  // namespace
}  // namespace warprow
