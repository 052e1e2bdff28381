// SPDX-License-Identifier: Apache-2.0
#include "models/kv_scales.h"

#include "files/model_files.h"
#include "models/weight_names.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_dir.h"

#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

// One layer of 4 heads and 3 KV heads.
DecoderSpec spec_of_one_layer() {
  DecoderSpec spec;
  spec.num_layers = 1;
  LayerSpec layer;
  layer.attention = plain_attention(6, 3, 8);
  spec.layers = {layer};
  spec.names = hf_weight_names();
  return spec;
}

struct Tensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

Result<std::vector<LayerKvScales>> scales_of(const std::vector<Tensor>& tensors,
                                             const nlohmann::json& quantisation = nullptr) {
  const test::TempDir dir;
  nlohmann::json config = {{"architectures", {"LlamaForCausalLM"}}};
  if (!quantisation.is_null()) {
    config["quantization_config"] = quantisation;
  }
  test::SafetensorsWriter writer;
  writer.add_f32("model.norm.weight", {1}, std::vector<float>{1.0F});
  for (const Tensor& tensor : tensors) {
    writer.add_f32("model.layers.0.self_attn." + tensor.name, tensor.shape, tensor.values);
  }
  dir.write("config.json", config.dump());
  dir.write("model.safetensors", writer.bytes());
  const Checkpoint checkpoint =
      value_or_throw(Checkpoint::open(value_or_throw(resolve_model(dir.path().string()))));
  return read_kv_scales(checkpoint, spec_of_one_layer());
}

LayerKvScales read(const std::vector<Tensor>& tensors, const nlohmann::json& config = nullptr) {
  return value_or_throw(scales_of(tensors, config)).front();
}

std::string scales_refusal(const std::vector<Tensor>& tensors,
                           const nlohmann::json& config = nullptr) {
  const auto read = scales_of(tensors, config);
  return read ? "accepted" : read.error().message;
}

using Floats = std::vector<float>;

TEST(KvScales, EveryNameOfAScale) {
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{
           {"k_scale", "v_scale"},
           {"attn.k_scale", "attn.v_scale"},
           {"k_proj.k_scale", "v_proj.v_scale"},
           {"qkv_proj.k_scale", "qkv_proj.v_scale"},
           {"k_proj.output_scale", "v_proj.output_scale"}}) {
    const LayerKvScales scales = read({{key, {}, {0.5F}}, {value, {1}, {0.25F}}});
    EXPECT_TRUE(scales.in_checkpoint) << key;
    EXPECT_EQ(scales.keys, (Floats{0.5F, 0.5F, 0.5F})) << key;
    EXPECT_EQ(scales.values, (Floats{0.25F, 0.25F, 0.25F})) << value;
  }
}

TEST(KvScales, OneForEachHead) {
  const LayerKvScales scales =
      read({{"k_scale", {3}, {1.0F, 2.0F, 3.0F}}, {"v_scale", {3, 1, 1}, {4.0F, 5.0F, 6.0F}}});
  EXPECT_EQ(scales.keys, (Floats{1.0F, 2.0F, 3.0F}));
  EXPECT_EQ(scales.values, (Floats{4.0F, 5.0F, 6.0F}));
}

TEST(KvScales, OneOfTheTwoServesBoth) {
  for (const char* name : {"k_scale", "v_scale", "kv_scale"}) {
    const LayerKvScales scales = read({{name, {1}, {0.5F}}});
    EXPECT_EQ(scales.keys, (Floats{0.5F, 0.5F, 0.5F})) << name;
    EXPECT_EQ(scales.values, scales.keys) << name;
  }
}

TEST(KvScales, NoneAreOne) {
  const LayerKvScales scales = read({});
  EXPECT_FALSE(scales.in_checkpoint);
  EXPECT_EQ(scales.keys, (Floats{1.0F, 1.0F, 1.0F}));
  EXPECT_EQ(scales.values, scales.keys);
}

TEST(KvScales, WhatIsNoScaleIsRefused) {
  const std::string name = "tensor model.layers.0.self_attn.k_scale";
  EXPECT_EQ(scales_refusal({{"k_scale", {2}, {1.0F, 1.0F}}}),
            name +
                " has the shape [2]; a scale of the KV cache has one element, or one for each "
                "of 3 KV heads");
  for (const float bad : {0.0F,
                          -1.0F,
                          1e-40F,
                          std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    const std::string message = scales_refusal({{"k_scale", {3}, {1.0F, bad, 1.0F}}});
    EXPECT_TRUE(message.starts_with(name + ": the scale ")) << message;
    EXPECT_TRUE(message.ends_with(" of KV head 1 is not a positive finite number")) << message;
  }
}

TEST(KvScales, SchemesOfOtherNumbersAreRefused) {
  const nlohmann::json good = {{"quant_method", "compressed-tensors"},
                               {"kv_cache_scheme",
                                {{"num_bits", 8},
                                 {"type", "float"},
                                 {"strategy", "attn_head"},
                                 {"dynamic", false},
                                 {"symmetric", true}}}};
  EXPECT_EQ(read({{"k_scale", {1}, {2.0F}}}, good).keys.front(), 2.0F);
  const auto changed = [&good](const char* key, const nlohmann::json& value) {
    nlohmann::json config = good;
    config["kv_cache_scheme"][key] = value;
    return scales_refusal({}, config);
  };
  EXPECT_NE(changed("num_bits", 4).find("kv_cache_scheme is '{"), std::string::npos);
  EXPECT_NE(changed("type", "int").find("kv_cache_scheme is '{"), std::string::npos);
  EXPECT_NE(changed("strategy", "channel").find("kv_cache_scheme is '{"), std::string::npos);
  EXPECT_NE(changed("symmetric", false).find("kv_cache_scheme is '{"), std::string::npos);
  EXPECT_NE(changed("dynamic", true).find("kv_cache_scheme is '{"), std::string::npos);
  EXPECT_NE(changed("dynamic", "yes").find("kv_cache_scheme is '{"), std::string::npos);
  const nlohmann::json modelopt = {
      {"quant_method", "modelopt"}, {"quant_algo", "FP8"}, {"kv_cache_quant_algo", "FP8"}};
  EXPECT_EQ(read({}, modelopt).keys.front(), 1.0F);
  nlohmann::json int4 = modelopt;
  int4["kv_cache_quant_algo"] = "NVFP4";
  EXPECT_NE(scales_refusal({}, int4).find("kv_cache_quant_algo is '\"NVFP4\"'"), std::string::npos);
}

}  // namespace
}  // namespace warprow
