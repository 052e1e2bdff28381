// SPDX-License-Identifier: Apache-2.0
#include "models/registry.h"
#include "tests/models/config_spec.h"
#include "tests/support/gguf_writer.h"

#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using nlohmann::json;
using test::error_of;
using test::GgufWriter;
using test::llama_config;
using test::spec_of;
using test::TempDir;

// As published: partial_rotary_factor beside rope_theta.
json glm_config() {
  json config = llama_config();
  config["architectures"] = {"Glm4MoeForCausalLM"};
  config["partial_rotary_factor"] = 0.5;
  config["attention_bias"] = true;
  config["use_qk_norm"] = true;
  config["moe_intermediate_size"] = 48;
  config["n_routed_experts"] = 12;
  config["num_experts_per_tok"] = 3;
  config["n_shared_experts"] = 2;
  config["n_group"] = 4;
  config["topk_group"] = 2;
  config["routed_scaling_factor"] = 2.5;
  config["norm_topk_prob"] = true;
  config["first_k_dense_replace"] = 1;
  config["num_nextn_predict_layers"] = 1;
  return config;
}

TEST(Glm4Moe, ReadsAPublishedConfig) {
  const DecoderSpec spec = value_or_throw(spec_of(glm_config()));
  EXPECT_EQ(spec.architecture, "Glm4MoeForCausalLM");
  ASSERT_EQ(spec.layers.size(), 4U);
  EXPECT_TRUE(spec.qkv_bias);
  EXPECT_FALSE(spec.o_bias);
  EXPECT_EQ(spec.ropes[0].rot_dim, 8);
  EXPECT_FALSE(spec.ropes[0].interleaved);
  EXPECT_FALSE(spec.layers[0].ffn.has_experts());
  EXPECT_EQ(spec.layers[0].ffn.intermediate_size, 96);
  for (size_t i = 1; i < 4; ++i) {
    const FfnSpec& ffn = spec.layers[i].ffn;
    EXPECT_TRUE(spec.layers[i].attention.qk_norm);
    EXPECT_EQ(ffn.num_experts, 12);
    EXPECT_EQ(ffn.experts_per_token, 3);
    EXPECT_EQ(ffn.intermediate_size, 48);
    EXPECT_EQ(ffn.shared_size, 96);
    EXPECT_FALSE(ffn.shared_gate);
    EXPECT_EQ(ffn.scores, RouterScores::kSigmoid);
    EXPECT_TRUE(ffn.choice_bias);
    EXPECT_TRUE(ffn.normalise);
    EXPECT_EQ(ffn.num_groups, 4);
    EXPECT_EQ(ffn.chosen_groups, 2);
    EXPECT_EQ(ffn.weights_scale, 2.5F);
  }
}

TEST(Glm4Moe, ReadsTheSpellingOfTransformers5) {
  json config = glm_config();
  config.erase("rope_theta");
  config.erase("partial_rotary_factor");
  config["rope_parameters"] = {
      {"rope_theta", 700.0}, {"rope_type", "default"}, {"partial_rotary_factor", 0.25}};
  config.erase("n_routed_experts");
  config["num_local_experts"] = 16;
  const DecoderSpec spec = value_or_throw(spec_of(config));
  EXPECT_EQ(spec.ropes[0].rot_dim, 4);
  EXPECT_EQ(spec.ropes[0].theta, 700.0F);
  EXPECT_EQ(spec.layers[1].ffn.num_experts, 16);
}

TEST(Glm4Moe, DefaultsAreThoseOfTransformers) {
  json config = glm_config();
  for (const char* key : {"partial_rotary_factor",
                          "attention_bias",
                          "use_qk_norm",
                          "n_shared_experts",
                          "n_group",
                          "topk_group",
                          "routed_scaling_factor",
                          "norm_topk_prob",
                          "first_k_dense_replace"}) {
    config.erase(key);
  }
  const DecoderSpec spec = value_or_throw(spec_of(config));
  EXPECT_EQ(spec.ropes[0].rot_dim, 8);
  EXPECT_FALSE(spec.qkv_bias);
  EXPECT_FALSE(spec.layers[1].attention.qk_norm);
  EXPECT_FALSE(spec.layers[0].ffn.has_experts());
  EXPECT_EQ(spec.layers[1].ffn.shared_size, 48);
  EXPECT_EQ(spec.layers[1].ffn.num_groups, 1);
  EXPECT_EQ(spec.layers[1].ffn.weights_scale, 1.0F);
  EXPECT_TRUE(spec.layers[1].ffn.normalise);
}

TEST(Glm4Moe, NoneOrAllLayersAreDense) {
  json config = glm_config();
  config["first_k_dense_replace"] = 0;
  EXPECT_TRUE(value_or_throw(spec_of(config)).layers[0].ffn.has_experts());
  config["first_k_dense_replace"] = 9;
  EXPECT_FALSE(value_or_throw(spec_of(config)).layers[3].ffn.has_experts());
}

TEST(Glm4Moe, RefusalsNameTheField) {
  const auto with = [](const char* key, const json& value) {
    json config = glm_config();
    config[key] = value;
    return error_of(config);
  };
  EXPECT_EQ(with("n_group", 5),
            "layer 1: 12 experts in 5 groups, equal ones of at least 2 are supported");
  EXPECT_EQ(with("n_group", 12),
            "layer 1: 12 experts in 12 groups, equal ones of at least 2 are supported");
  EXPECT_EQ(with("topk_group", 5),
            "layer 1: 3 experts per token, of 5 of 4 groups with 3 experts each");
  EXPECT_EQ(with("num_experts_per_tok", 7),
            "layer 1: 7 experts per token, of 2 of 4 groups with 3 experts each");
  for (const char* key : {"n_shared_experts", "first_k_dense_replace"}) {
    EXPECT_NE(with(key, -1).find(std::string(key) + " is -1"), std::string::npos);
  }
  EXPECT_NE(with("n_shared_experts", 1 << 28).find("n_shared_experts is"), std::string::npos);
  EXPECT_NE(with("routed_scaling_factor", 0).find("routed_scaling_factor is 0"), std::string::npos);
  EXPECT_NE(with("moe_intermediate_size", nullptr).find("moe_intermediate_size is missing"),
            std::string::npos);
}

Result<DecoderSpec> gguf_spec(uint32_t scores, uint32_t predictors) {
  const std::string arch = "glm4moe";
  GgufWriter writer;
  writer.add("general.architecture", arch).add(arch + ".block_count", uint32_t{4});
  writer.add(arch + ".context_length", uint32_t{64}).add(arch + ".embedding_length", uint32_t{64});
  writer.add(arch + ".feed_forward_length", uint32_t{96});
  writer.add(arch + ".attention.head_count", uint32_t{4});
  writer.add(arch + ".rope.dimension_count", uint32_t{8});
  writer.add(arch + ".expert_count", uint32_t{8}).add(arch + ".expert_used_count", uint32_t{2});
  writer.add(arch + ".expert_feed_forward_length", uint32_t{48});
  writer.add(arch + ".expert_shared_count", uint32_t{1});
  writer.add(arch + ".leading_dense_block_count", uint32_t{2});
  writer.add(arch + ".expert_weights_scale", 1.5F);
  writer.add(arch + ".expert_gating_func", scores);
  writer.add(arch + ".nextn_predict_layers", predictors);
  writer.add_f32("token_embd.weight", {64, 32}, std::vector<float>(32 * 64, 1.0F));
  writer.add_f32("blk.0.attn_q.bias", {64}, std::vector<float>(64, 1.0F));
  const TempDir dir;
  const auto checkpoint = value_or_throw(
      Checkpoint::open(value_or_throw(resolve_model(dir.write("m.gguf", writer.bytes())))));
  return read_decoder_spec(checkpoint);
}

// The layers that predict further tokens are counted, but not run.
TEST(Glm4Moe, ReadsGguf) {
  const DecoderSpec spec = value_or_throw(gguf_spec(2, 1));
  EXPECT_EQ(spec.num_layers, 3);
  ASSERT_EQ(spec.layers.size(), 3U);
  EXPECT_FALSE(spec.layers[1].ffn.has_experts());
  EXPECT_EQ(spec.layers[2].ffn.num_experts, 8);
  EXPECT_EQ(spec.layers[2].ffn.weights_scale, 1.5F);
  EXPECT_TRUE(spec.qkv_bias);
  EXPECT_FALSE(spec.layers[2].attention.qk_norm);
  EXPECT_EQ(spec.ropes[0].rot_dim, 8);
  EXPECT_EQ(gguf_spec(1, 0).error().message,
            "expert_gating_func 1 is not supported (2, sigmoid, is)");
  EXPECT_EQ(gguf_spec(2, 4).error().message, "model config: nextn_predict_layers is 4 of 4 layers");
}

}  // namespace
}  // namespace warprow
