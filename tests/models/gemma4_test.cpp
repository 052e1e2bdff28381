// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_math.h"
#include "models/layer_needs.h"
#include "models/registry.h"
#include "models/tensor_split.h"
#include "tests/models/config_spec.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using nlohmann::json;
using test::error_of;
using test::llama_config;
using test::spec_of;

constexpr const char* kFull = "full_attention";
constexpr const char* kSliding = "sliding_attention";

// As published: heads of global layers under keys of their own.
json gemma_config() {
  json config = llama_config();
  config.erase("rope_theta");
  config["architectures"] = {"Gemma4ForCausalLM"};
  config["hidden_activation"] = "gelu_pytorch_tanh";
  config["head_dim"] = 16;
  config["global_head_dim"] = 32;
  config["num_global_key_value_heads"] = 1;
  config["attention_k_eq_v"] = true;
  config["hidden_size_per_layer_input"] = 8;
  config["sliding_window"] = 24;
  config["final_logit_softcapping"] = 30.0;
  config["layer_types"] = {kSliding, kFull, kSliding, kFull};
  config["rope_parameters"] = {
      {kFull,
       {{"rope_type", "proportional"}, {"rope_theta", 1e6}, {"partial_rotary_factor", 0.25}}},
      {kSliding, {{"rope_type", "default"}, {"rope_theta", 1e4}}}};
  return config;
}

void expect_layers(const DecoderSpec& spec) {
  ASSERT_EQ(spec.layers.size(), 4U);
  for (size_t i = 0; i < 4; ++i) {
    const AttentionSpec& attention = spec.layers[i].attention;
    const bool global = i % 2 == 1;
    EXPECT_EQ(attention.head_dim, global ? 32 : 16);
    EXPECT_EQ(attention.head_dim_v, attention.head_dim);
    EXPECT_EQ(attention.num_kv_heads, global ? 1 : 2);
    EXPECT_EQ(attention.window, global ? 0 : 24);
    EXPECT_EQ(attention.values_are_keys, global);
    EXPECT_EQ(attention.scale, 1.0F);
    EXPECT_TRUE(attention.qk_norm);
    EXPECT_TRUE(attention.v_norm);
    EXPECT_TRUE(attention.has_own_kv());
    EXPECT_EQ(spec.layers[i].layer_input_size, 8);
    EXPECT_TRUE(spec.layers[i].layer_scalar);
    EXPECT_TRUE(spec.layers[i].post_norms);
    const RopeSpec& rope = spec.ropes[static_cast<size_t>(attention.rope)];
    EXPECT_EQ(rope.rot_dim, attention.head_dim);
    EXPECT_EQ(rope.theta, global ? 1e6F : 1e4F);
    EXPECT_EQ(rope.num_rotated, global ? 4 : 0);
  }
}

TEST(Gemma4, ReadsAPublishedConfig) {
  const DecoderSpec spec = value_or_throw(spec_of(gemma_config()));
  EXPECT_EQ(spec.architecture, "Gemma4ForCausalLM");
  expect_layers(spec);
  EXPECT_EQ(spec.norm_offset, 0.0F);
  EXPECT_EQ(spec.embed_scale, 8.0F);
  EXPECT_EQ(spec.logits_soft_cap, 30.0F);
  EXPECT_TRUE(spec.tied_head);
}

TEST(Gemma4, ReadsTheSpellingOfTransformers5) {
  json config = gemma_config();
  config.erase("global_head_dim");
  config.erase("num_global_key_value_heads");
  const json heads = {{"head_dim", 32}, {"num_key_value_heads", 1}};
  config["per_layer_config"] = {{"1", heads}, {"3", heads}};
  expect_layers(value_or_throw(spec_of(config)));
}

TEST(Gemma4, DefaultsAreThoseOfTransformers) {
  json config = gemma_config();
  for (const char* key : {"layer_types",
                          "rope_parameters",
                          "global_head_dim",
                          "attention_k_eq_v",
                          "hidden_size_per_layer_input",
                          "sliding_window"}) {
    config.erase(key);
  }
  config["num_hidden_layers"] = 8;
  const DecoderSpec spec = value_or_throw(spec_of(config));
  for (size_t i = 0; i < 8; ++i) {
    const bool global = i == 5 || i == 7;  // the last always is
    EXPECT_EQ(spec.layers[i].attention.window, global ? 0 : 512);
    EXPECT_EQ(spec.layers[i].attention.head_dim, global ? 512 : 16);
    EXPECT_EQ(spec.layers[i].attention.num_kv_heads, 2);
    EXPECT_EQ(spec.layers[i].layer_input_size, 256);
  }
  EXPECT_EQ(spec.ropes[0].num_rotated, 64);
  EXPECT_EQ(spec.ropes[0].theta, 1e6F);
  EXPECT_EQ(spec.ropes[1].theta, 1e4F);
  config["hidden_size_per_layer_input"] = nullptr;
  EXPECT_EQ(value_or_throw(spec_of(config)).layers[0].layer_input_size, 0);
}

// The last layers read the cache of the last earlier one of their type, and take no bytes of it.
TEST(Gemma4, LayersShareKeysAndValues) {
  json config = gemma_config();
  config["num_hidden_layers"] = 7;
  config["layer_types"] = {kSliding, kFull, kSliding, kSliding, kFull, kSliding, kFull};
  const DecoderSpec whole = value_or_throw(spec_of(config));
  config["num_kv_shared_layers"] = 3;
  config["use_double_wide_mlp"] = true;
  const DecoderSpec spec = value_or_throw(spec_of(config));
  EXPECT_EQ(spec.layers[3].attention.kv_source, kOwnKv);
  EXPECT_EQ(spec.layers[4].attention.kv_source, 1);
  EXPECT_EQ(spec.layers[5].attention.kv_source, 3);
  EXPECT_EQ(spec.layers[6].attention.kv_source, 1);
  EXPECT_EQ(spec.layers[3].ffn.intermediate_size, 96);
  EXPECT_EQ(spec.layers[4].ffn.intermediate_size, 192);
  EXPECT_EQ(spec.layers[5].attention.qkv_size(), 64);

  const KvPlan plan = value_or_throw(plan_kv(spec, {}));
  ASSERT_EQ(plan.layers.size(), 7U);
  EXPECT_EQ(plan.layers[4], plan.layers[1]);
  EXPECT_EQ(plan.layers[5], plan.layers[3]);
  EXPECT_EQ(plan.layers[6], plan.layers[1]);
  // 16 tokens of one global layer: 2 * 16 * 1 * 32 elements, and of a sliding one 2 * 16 * 2 * 16: the same.
  const KvPlan all = value_or_throw(plan_kv(whole, {}));
  size_t places = 0;
  for (const KvGroupSpec& group : plan.groups) {
    places += static_cast<size_t>(group.num_layers);
    EXPECT_EQ(group.layer_block_bytes(), 2 * 2 * 16 * 32);
  }
  EXPECT_EQ(places, 4U);
  EXPECT_EQ(all.groups.size() * static_cast<size_t>(all.groups[0].num_layers), 8U);
}

TEST(Gemma4, ReadsExpertsBesideTheFeedForward) {
  json config = gemma_config();
  config["enable_moe_block"] = true;
  config["num_experts"] = 8;
  config["top_k_experts"] = 3;
  config["moe_intermediate_size"] = 32;
  const DecoderSpec spec = value_or_throw(spec_of(config));
  const FfnSpec& ffn = spec.layers[2].ffn;
  EXPECT_EQ(ffn.num_experts, 8);
  EXPECT_EQ(ffn.experts_per_token, 3);
  EXPECT_EQ(ffn.intermediate_size, 32);
  EXPECT_EQ(ffn.shared_size, 96);
  EXPECT_TRUE(ffn.own_norms);
  EXPECT_TRUE(ffn.normalise);
  EXPECT_EQ(ffn.activation, Activation::kGeluTanh);
  EXPECT_TRUE(check_tensor_split(spec, 2, DeviceKind::kCpu));
  EXPECT_TRUE(check_tensor_split(spec, 1, DeviceKind::kCuda));
  config.erase("top_k_experts");
  EXPECT_EQ(error_of(config), "config.json: top_k_experts is missing");
}

TEST(Gemma4, TheTextModelOfALargerOne) {
  json config = {{"architectures", {"Gemma4ForConditionalGeneration"}}};
  config["text_config"] = gemma_config();
  config["text_config"].erase("architectures");
  config["text_config"].erase("num_attention_heads");
  const DecoderSpec spec = value_or_throw(spec_of(config));
  EXPECT_EQ(spec.architecture, "Gemma4ForConditionalGeneration");
  EXPECT_EQ(spec.layers[0].attention.num_heads, 8);
}

TEST(Gemma4, RefusalsNameTheField) {
  const auto with = [](const char* key, const json& value) {
    json config = gemma_config();
    config[key] = value;
    return error_of(config);
  };
  EXPECT_EQ(with("use_bidirectional_attention", "all"),
            "use_bidirectional_attention all is not supported");
  EXPECT_EQ(with("use_bidirectional_attention", "vision"), "no error");
  EXPECT_EQ(with("layer_types", json({kFull})),
            "config.json: layer_types has 1 entries for 4 layers");
  EXPECT_EQ(with("layer_types", json({kFull, "linear_attention", kFull, kFull})),
            "layer type linear_attention is not supported");
  EXPECT_EQ(with("num_kv_shared_layers", 4), "config.json: num_kv_shared_layers is 4 of 4 layers");
  EXPECT_EQ(with("num_kv_shared_layers", 3),
            "config.json: num_kv_shared_layers is 3, which leaves no layer of the type of layer 1");
  EXPECT_EQ(with("per_layer_config", {{"1", {{"intermediate_size", 8}}}}),
            "per_layer_config: intermediate_size is not supported");
  EXPECT_NE(with("per_layer_config", {{"global", {{"head_dim", 8}}}}).find("per_layer_config"),
            std::string::npos);
  EXPECT_NE(with("per_layer_config", json({1})).find("per_layer_config"), std::string::npos);
  EXPECT_EQ(with("per_layer_config", {{"1", {{"head_dim", 32}}}}),
            "layer 3: head_dim 16 beside 32 of the same layer type");
  EXPECT_EQ(with("per_layer_config", {{"1", {{"head_dim", -8}}}}),
            "model config: head_dim is -8, expected a positive number below 2^29");
  EXPECT_EQ(with("final_logit_softcapping", -1), "model config: final_logit_softcapping is -1");
  EXPECT_NE(with("hidden_size_per_layer_input", -1).find("hidden_size_per_layer_input is -1"),
            std::string::npos);
}

}  // namespace
}  // namespace warprow
