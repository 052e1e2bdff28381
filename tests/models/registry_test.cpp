// SPDX-License-Identifier: Apache-2.0
#include "models/registry.h"

#include "tests/models/config_spec.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/temp_dir.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using nlohmann::json;
using test::error_of;
using test::GgufWriter;
using test::llama_config;
using test::spec_of;
using test::TempDir;

TEST(Registry, ReadsALlamaConfig) {
  const DecoderSpec spec = value_or_throw(spec_of(llama_config()));
  EXPECT_EQ(spec.num_layers, 4);
  ASSERT_EQ(spec.layers.size(), 4U);
  EXPECT_EQ(spec.layers[3].attention.head_dim, 16);
  EXPECT_EQ(spec.layers[3].attention.num_kv_heads, 2);
  EXPECT_EQ(spec.layers[3].attention.scale, 0.25F);
  EXPECT_EQ(spec.layers[3].ffn.intermediate_size, 96);
  EXPECT_EQ(spec.vocab_size, 32);
  ASSERT_EQ(spec.ropes.size(), 1U);
  EXPECT_EQ(spec.ropes[0].rot_dim, 16);
  EXPECT_EQ(spec.ropes[0].theta, 5000.0F);
  EXPECT_TRUE(spec.tied_head);
  EXPECT_FALSE(spec.permuted_qk);
  EXPECT_FALSE(spec.qkv_bias);
  EXPECT_FALSE(value_or_throw(spec_of(llama_config(), true)).tied_head);
}

TEST(Registry, ReadsBothFormsOfRope) {
  json config = llama_config();
  config.erase("rope_theta");
  config["rope_parameters"] = {{"rope_theta", 700.0}, {"rope_type", "linear"}, {"factor", 2.0}};
  const DecoderSpec spec = value_or_throw(spec_of(config));
  EXPECT_EQ(spec.ropes[0].theta, 700.0F);
  EXPECT_EQ(spec.ropes[0].scaling, RopeScaling::kLinear);
  EXPECT_EQ(spec.ropes[0].factor, 2.0F);
  config = llama_config();
  config["rope_scaling"] = {{"type", "spiral"}, {"factor", 4.0}};
  EXPECT_NE(error_of(config).find("rope_type spiral"), std::string::npos);
}

TEST(Registry, ReadsEachArchitecturesOwnFields) {
  json config = llama_config();
  config["architectures"] = {"MistralForCausalLM"};
  config["sliding_window"] = 128;
  EXPECT_EQ(value_or_throw(spec_of(config)).layers[3].attention.window, 128);
  config["sliding_window"] = nullptr;
  EXPECT_EQ(value_or_throw(spec_of(config)).layers[3].attention.window, 0);

  config["architectures"] = {"Qwen2ForCausalLM"};
  config["sliding_window"] = 64;
  EXPECT_TRUE(value_or_throw(spec_of(config)).qkv_bias);
  EXPECT_EQ(value_or_throw(spec_of(config)).layers[3].attention.window, 0);
  config["use_sliding_window"] = true;
  config["max_window_layers"] = 2;
  EXPECT_EQ(value_or_throw(spec_of(config)).layers[1].attention.window, 0);
  EXPECT_EQ(value_or_throw(spec_of(config)).layers[2].attention.window, 64);

  config["architectures"] = {"Qwen3ForCausalLM"};
  config["head_dim"] = 32;
  const DecoderSpec qwen3 = value_or_throw(spec_of(config));
  EXPECT_TRUE(qwen3.layers[3].attention.qk_norm);
  EXPECT_FALSE(qwen3.qkv_bias);
  EXPECT_EQ(qwen3.layers[3].attention.q_size(), 128);
}

TEST(Registry, Gemma2) {
  json config = llama_config();
  config["architectures"] = {"Gemma2ForCausalLM"};
  config["head_dim"] = 32;
  config["sliding_window"] = 128;
  config["query_pre_attn_scalar"] = 64;
  config["hidden_activation"] = "gelu_pytorch_tanh";
  const DecoderSpec spec = value_or_throw(spec_of(config, true));
  EXPECT_TRUE(spec.tied_head);
  EXPECT_EQ(spec.norm_offset, 1.0F);
  EXPECT_EQ(spec.embed_scale, 8.0F);
  EXPECT_EQ(spec.logits_soft_cap, 30.0F);
  EXPECT_EQ(spec.layers[0].attention.soft_cap, 50.0F);
  EXPECT_EQ(spec.layers[0].attention.scale, 0.125F);
  EXPECT_EQ(spec.layers[0].attention.window, 128);
  EXPECT_EQ(spec.layers[1].attention.window, 0);
  EXPECT_TRUE(spec.layers[1].post_norms);
  config["attn_logit_softcapping"] = nullptr;  // no cap
  config["final_logit_softcapping"] = 12.5;
  config["layer_types"] = {
      "full_attention", "sliding_attention", "full_attention", "full_attention"};
  const DecoderSpec other = value_or_throw(spec_of(config));
  EXPECT_EQ(other.layers[0].attention.soft_cap, 0.0F);
  EXPECT_EQ(other.logits_soft_cap, 12.5F);
  EXPECT_EQ(other.layers[1].attention.window, 128);
  EXPECT_EQ(other.layers[2].attention.window, 0);
}

TEST(Registry, GraniteHasFourFactors) {
  json config = llama_config();
  config["architectures"] = {"GraniteForCausalLM"};
  EXPECT_EQ(value_or_throw(spec_of(config)).layers[0].attention.scale, 1.0F);
  config["embedding_multiplier"] = 12;
  config["attention_multiplier"] = 0.015625;
  config["residual_multiplier"] = 0.22;
  config["logits_scaling"] = 8.0;
  const DecoderSpec spec = value_or_throw(spec_of(config));
  EXPECT_EQ(spec.embed_scale, 12.0F);
  EXPECT_EQ(spec.layers[3].attention.scale, 0.015625F);
  EXPECT_EQ(spec.layers[3].residual_scale, 0.22F);
  EXPECT_EQ(spec.logits_divisor, 8.0F);
  config["logits_scaling"] = 0;
  EXPECT_EQ(error_of(config), "model config: logits_scaling is 0");
}

TEST(Registry, SmolLM3HasLayersWithoutRope) {
  json config = llama_config();
  config["architectures"] = {"SmolLM3ForCausalLM"};
  const auto ropes = [&config] {
    std::vector<int32_t> out;
    for (const LayerSpec& layer : value_or_throw(spec_of(config)).layers) {
      out.push_back(layer.attention.rope);
    }
    return out;
  };
  EXPECT_EQ(ropes(), (std::vector<int32_t>{0, 0, 0, kNoRope}));
  config["no_rope_layer_interval"] = 2;
  EXPECT_EQ(ropes(), (std::vector<int32_t>{0, kNoRope, 0, kNoRope}));
  config["no_rope_layers"] = {0, 1, 1, 0};
  EXPECT_EQ(ropes(), (std::vector<int32_t>{kNoRope, 0, 0, kNoRope}));
  config["sliding_window"] = 64;
  EXPECT_EQ(value_or_throw(spec_of(config)).layers[0].attention.window, 0);
  config["use_sliding_window"] = true;
  EXPECT_EQ(value_or_throw(spec_of(config)).layers[0].attention.window, 64);
  EXPECT_EQ(value_or_throw(spec_of(config)).layers[1].attention.window, 0);
  config["no_rope_layers"] = {0, 1, 1};
  EXPECT_NE(error_of(config).find("no_rope_layers has 3 entries for 4 layers"), std::string::npos);
}

TEST(Registry, OtherPlacesOfNormsAndFusedTensors) {
  json config = llama_config();
  config["architectures"] = {"Olmo2ForCausalLM"};
  const LayerSpec olmo2 = value_or_throw(spec_of(config)).layers[0];
  EXPECT_FALSE(olmo2.pre_norms);
  EXPECT_TRUE(olmo2.post_norms);
  EXPECT_TRUE(olmo2.attention.wide_qk_norm);
  EXPECT_FALSE(olmo2.attention.qk_norm);

  config["architectures"] = {"Phi3ForCausalLM"};
  config["partial_rotary_factor"] = 0.75;
  const DecoderSpec phi3 = value_or_throw(spec_of(config));
  EXPECT_EQ(phi3.ropes[0].rot_dim, 12);
  EXPECT_EQ(phi3.names.qkv, "model.layers.{}.self_attn.qkv_proj.weight");
  EXPECT_EQ(phi3.names.gate_up, "model.layers.{}.mlp.gate_up_proj.weight");

  config["architectures"] = {"Glm4ForCausalLM"};
  config["partial_rotary_factor"] = 0.5;
  const DecoderSpec glm4 = value_or_throw(spec_of(config));
  EXPECT_TRUE(glm4.ropes[0].interleaved);
  EXPECT_EQ(glm4.ropes[0].rot_dim, 8);
  EXPECT_TRUE(glm4.qkv_bias);
  EXPECT_FALSE(glm4.o_bias);
  EXPECT_TRUE(glm4.layers[0].post_norms);
}

// As the family publishes it.
json qwen3_moe_config() {
  json config = llama_config();
  config["architectures"] = {"Qwen3MoeForCausalLM"};
  config["head_dim"] = 32;
  config["num_experts"] = 8;
  config["num_experts_per_tok"] = 3;
  config["moe_intermediate_size"] = 48;
  config["norm_topk_prob"] = true;
  config["decoder_sparse_step"] = 1;
  config["mlp_only_layers"] = json::array();
  config["sliding_window"] = nullptr;
  config["max_window_layers"] = 4;
  config["use_sliding_window"] = false;
  return config;
}

TEST(Registry, ReadsQwen3Experts) {
  const DecoderSpec spec = value_or_throw(spec_of(qwen3_moe_config()));
  ASSERT_EQ(spec.layers.size(), 4U);
  EXPECT_EQ(spec.architecture, "Qwen3MoeForCausalLM");
  for (const LayerSpec& layer : spec.layers) {
    EXPECT_EQ(layer.ffn.num_experts, 8);
    EXPECT_EQ(layer.ffn.experts_per_token, 3);
    EXPECT_EQ(layer.ffn.intermediate_size, 48);
    EXPECT_EQ(layer.ffn.active_size(), 144);
    EXPECT_TRUE(layer.ffn.normalise);
    EXPECT_EQ(layer.ffn.scores, RouterScores::kSoftmax);
    EXPECT_TRUE(layer.attention.qk_norm);
    EXPECT_EQ(layer.attention.window, 0);
  }
}

// As the family publishes it: every second layer attends here.
json qwen3_next_config() {
  json config = qwen3_moe_config();
  config["architectures"] = {"Qwen3NextForCausalLM"};
  config["full_attention_interval"] = 2;
  config["partial_rotary_factor"] = 0.25;
  config["shared_expert_intermediate_size"] = 64;
  config["linear_num_key_heads"] = 2;
  config["linear_num_value_heads"] = 4;
  config["linear_key_head_dim"] = 32;
  config["linear_value_head_dim"] = 16;
  config["linear_conv_kernel_dim"] = 4;
  return config;
}

TEST(Registry, ReadsLayersWithStates) {
  const DecoderSpec next = value_or_throw(spec_of(qwen3_next_config()));
  ASSERT_EQ(next.layers.size(), 4U);
  for (size_t l = 0; l < 4; ++l) {
    const LayerSpec& layer = next.layers[l];
    EXPECT_EQ(layer.has_state(), l % 2 == 0);
    EXPECT_TRUE(layer.attention.output_gate);
    EXPECT_TRUE(layer.attention.qk_norm);
    EXPECT_TRUE(layer.ffn.normalise);
    EXPECT_EQ(layer.ffn.shared_size, 64);
  }
  const DeltaSpec& delta = next.layers[0].delta;
  EXPECT_TRUE(delta.qkvz_by_key_head && delta.ba_by_key_head);
  EXPECT_EQ(delta.num_channels(), 2 * 64 + 64);
  EXPECT_EQ(delta.state_floats(), 4 * (3 * (32 + 32 + 16) + 32 * 16));
  EXPECT_EQ(next.norm_offset, 1.0F);
  EXPECT_EQ(next.ropes[0].rot_dim, 8);

  json config = qwen3_next_config();
  config["architectures"] = {"Qwen3_5MoeForConditionalGeneration"};
  config["layer_types"] = {
      "linear_attention", "linear_attention", "full_attention", "full_attention"};
  config.erase("norm_topk_prob");
  config.erase("partial_rotary_factor");
  config.erase("intermediate_size");
  json outer;
  outer["architectures"] = config["architectures"];
  outer["text_config"] = config;
  const DecoderSpec moe = value_or_throw(spec_of(outer));
  EXPECT_TRUE(moe.layers[1].has_state());
  EXPECT_FALSE(moe.layers[2].has_state());
  EXPECT_FALSE(moe.layers[0].delta.ba_by_key_head);
  EXPECT_TRUE(moe.layers[0].ffn.normalise);
  EXPECT_EQ(moe.ropes[0].rot_dim, 8);
}

TEST(Registry, RefusesStatesThatNoKernelKeeps) {
  json config = qwen3_next_config();
  config["layer_types"] = {"mamba", "mamba", "full_attention", "full_attention"};
  EXPECT_NE(error_of(config).find("layer type mamba is not supported"), std::string::npos);
  config["hidden_act"] = "gelu_pytorch_tanh";
  config["layer_types"] = json::array();
  EXPECT_NE(error_of(config).find("hidden_act"), std::string::npos);
  config = qwen3_next_config();
  config["layer_types"] = {"full_attention"};
  EXPECT_NE(error_of(config).find("1 layer_types for 4 layers"), std::string::npos);
  for (const auto& [key, value] : {std::pair{"linear_conv_kernel_dim", 9},
                                   {"linear_num_value_heads", 3},
                                   {"linear_value_head_dim", 1 << 20}}) {
    config = qwen3_next_config();
    config[key] = value;
    EXPECT_NE(error_of(config).find("layer 0: gated delta net"), std::string::npos) << key;
  }
}

// Transformers 5 renames the count of experts, leaves out what has its default, and moves the rope.
TEST(Registry, ReadsQwen3ExpertsOfTransformers5) {
  json config = qwen3_moe_config();
  config.erase("num_experts");
  config["num_local_experts"] = 8;
  config.erase("rope_theta");
  config["rope_parameters"] = {{"rope_theta", 700.0}, {"rope_type", "default"}};
  config.erase("norm_topk_prob");
  config.erase("mlp_only_layers");
  const DecoderSpec spec = value_or_throw(spec_of(config));
  EXPECT_EQ(spec.layers[0].ffn.num_experts, 8);
  EXPECT_FALSE(spec.layers[0].ffn.normalise);
  EXPECT_EQ(spec.ropes[0].theta, 700.0F);
}

TEST(Registry, SomeQwen3LayersHaveNoExperts) {
  json config = qwen3_moe_config();
  config["mlp_only_layers"] = {0, 3};
  DecoderSpec spec = value_or_throw(spec_of(config));
  EXPECT_FALSE(spec.layers[0].ffn.has_experts());
  EXPECT_EQ(spec.layers[0].ffn.intermediate_size, 96);
  EXPECT_EQ(spec.layers[0].ffn.active_size(), 96);
  EXPECT_TRUE(spec.layers[1].ffn.has_experts());
  EXPECT_FALSE(spec.layers[3].ffn.has_experts());
  config["decoder_sparse_step"] = 2;  // the second, and the fourth but for the list
  spec = value_or_throw(spec_of(config));
  EXPECT_TRUE(spec.layers[1].ffn.has_experts());
  EXPECT_FALSE(spec.layers[2].ffn.has_experts());
  EXPECT_FALSE(spec.layers[3].ffn.has_experts());
  for (const json& bad : {json(3), json({-1}), json({"x"}), json({1.5})}) {
    config["mlp_only_layers"] = bad;
    EXPECT_NE(error_of(config).find("mlp_only_layers"), std::string::npos) << bad.dump();
  }
}

TEST(Registry, AWindowOfQwen3ExpertsIsThatOfAllLayers) {
  json config = qwen3_moe_config();
  config["use_sliding_window"] = true;
  config["sliding_window"] = 64;
  const DecoderSpec spec = value_or_throw(spec_of(config));
  EXPECT_EQ(spec.layers[0].attention.window, 64);
  EXPECT_EQ(spec.layers[3].attention.window, 64);
}

TEST(Registry, ReadsMixtral) {
  json config = llama_config();
  config["architectures"] = {"MixtralForCausalLM"};
  config["num_local_experts"] = 4;
  config["num_experts_per_tok"] = 2;
  config["sliding_window"] = nullptr;
  const DecoderSpec spec = value_or_throw(spec_of(config));
  EXPECT_EQ(spec.layers[3].ffn.num_experts, 4);
  EXPECT_EQ(spec.layers[3].ffn.experts_per_token, 2);
  EXPECT_EQ(spec.layers[3].ffn.intermediate_size, 96);
  EXPECT_TRUE(spec.layers[3].ffn.normalise);
  EXPECT_EQ(spec.layers[3].attention.window, 0);
  EXPECT_EQ(spec.names.router, "model.layers.{}.block_sparse_moe.gate.weight");
  EXPECT_EQ(spec.names.expert_down, "model.layers.{}.block_sparse_moe.experts.{}.w2.weight");
}

// As transformers 5 writes it: no window is 0.
TEST(Registry, ReadsQwen2Experts) {
  json config = qwen3_moe_config();
  config["architectures"] = {"Qwen2MoeForCausalLM"};
  config["shared_expert_intermediate_size"] = 80;
  config["norm_topk_prob"] = false;
  config["mlp_only_layers"] = {1};
  config["sliding_window"] = 0;
  config["layer_types"] = std::vector<std::string>(4, "full_attention");
  const DecoderSpec spec = value_or_throw(spec_of(config));
  EXPECT_TRUE(spec.qkv_bias);
  EXPECT_FALSE(spec.layers[0].attention.qk_norm);
  EXPECT_EQ(spec.layers[0].attention.window, 0);
  EXPECT_EQ(spec.layers[0].ffn.shared_size, 80);
  EXPECT_EQ(spec.layers[0].ffn.active_size(), 3 * 48 + 80);
  EXPECT_FALSE(spec.layers[0].ffn.normalise);
  EXPECT_EQ(spec.layers[1].ffn.shared_size, 0);
  config["qkv_bias"] = false;
  EXPECT_FALSE(value_or_throw(spec_of(config)).qkv_bias);
  config.erase("shared_expert_intermediate_size");
  EXPECT_NE(error_of(config).find("shared_expert_intermediate_size is missing"), std::string::npos);
}

TEST(Registry, RefusalsOfExpertsNameTheField) {
  for (const char* field : {"num_experts_per_tok", "moe_intermediate_size"}) {
    json config = qwen3_moe_config();
    config.erase(field);
    EXPECT_NE(error_of(config).find(std::string(field) + " is missing"), std::string::npos);
  }
  json config = qwen3_moe_config();
  config.erase("num_experts");
  EXPECT_NE(error_of(config).find("num_local_experts is missing"), std::string::npos);
  config["num_experts"] = 2;
  EXPECT_NE(error_of(config).find("layer 0: 3 experts per token, 1 to 2 of 2"), std::string::npos);
  config["num_experts"] = 2000;
  EXPECT_NE(error_of(config).find("2000 experts, at most 1024"), std::string::npos);
  config = qwen3_moe_config();
  config["moe_intermediate_size"] = 1 << 28;
  EXPECT_NE(error_of(config).find("4294967296 rows together"), std::string::npos);
}

TEST(Registry, AnUnknownArchitectureIsRefusedWithTheNearest) {
  json config = llama_config();
  config["architectures"] = {"Qwen3_MoeForCausalLM"};
  EXPECT_NE(error_of(config).find("architecture Qwen3_MoeForCausalLM is not supported; the nearest "
                                  "that is: Qwen3MoeForCausalLM"),
            std::string::npos);
  config["architectures"] = {"Llama4ForCausalLM"};
  EXPECT_NE(error_of(config).find("nearest that is: LlamaForCausalLM"), std::string::npos);
}

TEST(Registry, AClassWithoutAHeadIsReadAsTheOneThatGenerates) {
  json config = llama_config();
  for (const char* name : {"LlamaModel", "LlamaForSequenceClassification"}) {
    config["architectures"] = {name};
    EXPECT_EQ(value_or_throw(spec_of(config)).architecture, "LlamaForCausalLM");
  }
}

TEST(Registry, RefusalsNameTheField) {
  json config = llama_config();
  config["architectures"] = {"ElectraModel"};
  EXPECT_NE(error_of(config).find("ElectraModel is not supported"), std::string::npos);
  EXPECT_NE(error_of(config).find("Qwen3ForCausalLM"), std::string::npos);
  for (const char* field : {"num_hidden_layers",
                            "hidden_size",
                            "num_attention_heads",
                            "intermediate_size",
                            "max_position_embeddings"}) {
    config = llama_config();
    config.erase(field);
    EXPECT_NE(error_of(config).find(field), std::string::npos);
    for (const json& bad : {json(0), json(-3), json("x"), json(1LL << 40)}) {
      config[field] = bad;
      EXPECT_NE(error_of(config).find(field), std::string::npos) << bad.dump();
    }
  }
  config = llama_config();
  config["num_key_value_heads"] = 3;
  EXPECT_NE(error_of(config).find("multiple of the key-value heads"), std::string::npos);
  config = llama_config();
  config["head_dim"] = 20;
  EXPECT_NE(error_of(config).find("head size 20"), std::string::npos);
  config = llama_config();
  config["hidden_act"] = "gelu";
  EXPECT_NE(error_of(config).find("hidden_act gelu"), std::string::npos);
  config = llama_config();
  config["architectures"] = json::array();
  EXPECT_NE(error_of(config).find("architectures"), std::string::npos);
  config = llama_config();
  config["architectures"] = {"Qwen3ForCausalLM"};
  config["layer_types"] = {"full_attention"};
  EXPECT_NE(error_of(config).find("layer_types has 1 entries for 4 layers"), std::string::npos);
}

TEST(Registry, GgufOfTheLlamaFamilyIsPermuted) {
  GgufWriter writer;
  writer.add("general.architecture", "llama").add("llama.block_count", uint32_t{1});
  writer.add("llama.context_length", uint32_t{64}).add("llama.embedding_length", uint32_t{64});
  writer.add("llama.feed_forward_length", uint32_t{96});
  writer.add("llama.attention.head_count", uint32_t{4});
  writer.add_f32("token_embd.weight", {64, 32}, std::vector<float>(32 * 64, 1.0F));
  const TempDir dir;
  const auto checkpoint = value_or_throw(
      Checkpoint::open(value_or_throw(resolve_model(dir.write("m.gguf", writer.bytes())))));
  const DecoderSpec spec = value_or_throw(read_decoder_spec(checkpoint));
  EXPECT_TRUE(spec.permuted_qk);
  EXPECT_EQ(spec.layers[0].attention.num_kv_heads, 4);
  EXPECT_EQ(spec.architecture, "LlamaForCausalLM");
}

// As published: rope_scaling at the top, experts in MXFP4.
json gpt_oss_config() {
  json config = llama_config();
  config["architectures"] = {"GptOssForCausalLM"};
  config["attention_bias"] = true;
  config["experts_per_token"] = 4;
  config["num_experts_per_tok"] = 4;
  config["num_local_experts"] = 8;
  config["initial_context_length"] = 64;
  config["layer_types"] = {
      "sliding_attention", "full_attention", "sliding_attention", "full_attention"};
  config["max_position_embeddings"] = 2048;
  config["rope_theta"] = 150000;
  config["rope_scaling"] = {{"beta_fast", 32.0},
                            {"beta_slow", 1.0},
                            {"factor", 32.0},
                            {"original_max_position_embeddings", 64},
                            {"rope_type", "yarn"},
                            {"truncate", false}};
  config["sliding_window"] = 128;
  config["swiglu_limit"] = 7.0;
  config["quantization_config"] = {
      {"modules_to_not_convert", {"model.layers.*.self_attn", "lm_head"}},
      {"quant_method", "mxfp4"}};
  return config;
}

void expect_gpt_oss(const DecoderSpec& spec, bool mxfp4) {
  EXPECT_EQ(spec.architecture, "GptOssForCausalLM");
  EXPECT_TRUE(spec.qkv_bias);
  EXPECT_TRUE(spec.o_bias);
  EXPECT_TRUE(spec.alternating_gate_up);
  EXPECT_EQ(spec.mxfp4_experts, mxfp4);
  EXPECT_EQ(spec.transposed_experts, !mxfp4);
  EXPECT_EQ(spec.names.router, "model.layers.{}.mlp.router.weight");
  EXPECT_EQ(spec.ropes[0].scaling, RopeScaling::kYarn);
  EXPECT_EQ(spec.ropes[0].theta, 150000.0F);
  EXPECT_EQ(spec.ropes[0].original_max_position, 64);
  EXPECT_FALSE(spec.ropes[0].truncate);
  EXPECT_NEAR(spec.ropes[0].attention_factor, 1.3465736F, 1e-6F);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    EXPECT_EQ(layer.attention.window, i % 2 == 0 ? 128 : 0);
    EXPECT_TRUE(layer.attention.sinks);
    EXPECT_EQ(layer.ffn.num_experts, 8);
    EXPECT_EQ(layer.ffn.experts_per_token, 4);
    EXPECT_EQ(layer.ffn.intermediate_size, 96);
    EXPECT_EQ(layer.ffn.scores, RouterScores::kSoftmaxOfChosen);
    EXPECT_EQ(layer.ffn.gate_limit, 7.0F);
    EXPECT_TRUE(layer.ffn.expert_biases);
  }
}

TEST(Registry, ReadsGptOss) {
  json config = gpt_oss_config();
  expect_gpt_oss(value_or_throw(spec_of(config)), true);
  // As transformers 5 writes it.
  json rope = config["rope_scaling"];
  rope["rope_theta"] = 150000;
  config["rope_parameters"] = rope;
  for (const char* key : {"rope_theta",
                          "rope_scaling",
                          "experts_per_token",
                          "initial_context_length",
                          "swiglu_limit",
                          "quantization_config"}) {
    config.erase(key);
  }
  expect_gpt_oss(value_or_throw(spec_of(config)), false);
  config.erase("layer_types");
  expect_gpt_oss(value_or_throw(spec_of(config)), false);
  config["swiglu_limit"] = 5.5;
  config["attention_bias"] = false;
  const DecoderSpec other = value_or_throw(spec_of(config));
  EXPECT_EQ(other.layers[0].ffn.gate_limit, 5.5F);
  EXPECT_FALSE(other.qkv_bias || other.o_bias);
}

TEST(Registry, RefusesWhatGptOssDoesNotHave) {
  json config = gpt_oss_config();
  config["layer_types"][1] = "chunked_attention";
  EXPECT_NE(error_of(config).find("layer_types has chunked_attention"), std::string::npos);
  config["layer_types"] = {"full_attention"};
  EXPECT_NE(error_of(config).find("layer_types has 1 entries for 4 layers"), std::string::npos);
  config = gpt_oss_config();
  config["swiglu_limit"] = 0;
  EXPECT_NE(error_of(config).find("swiglu_limit is 0"), std::string::npos);
  config = gpt_oss_config();
  config["intermediate_size"] = 80;
  EXPECT_NE(error_of(config).find("layer 0: experts in MXFP4 of sizes 64 and 80, multiples of 32"),
            std::string::npos);
  config.erase("quantization_config");
  EXPECT_EQ(error_of(config), "no error");
  config = llama_config();
  config["quantization_config"] = {{"quant_method", "mxfp4"}};
  EXPECT_NE(error_of(config).find("quant_method mxfp4 is not supported for LlamaForCausalLM"),
            std::string::npos);
}

TEST(Registry, ReadsGptOssOfGguf) {
  const std::string arch = "gpt-oss";
  GgufWriter writer;
  writer.add("general.architecture", arch).add(arch + ".block_count", uint32_t{4});
  writer.add(arch + ".context_length", uint32_t{2048})
      .add(arch + ".embedding_length", uint32_t{64});
  writer.add(arch + ".feed_forward_length", uint32_t{96});
  writer.add(arch + ".expert_feed_forward_length", uint32_t{96});
  writer.add(arch + ".attention.head_count", uint32_t{4});
  writer.add(arch + ".attention.sliding_window", uint32_t{128});
  writer.add(arch + ".expert_count", uint32_t{8}).add(arch + ".expert_used_count", uint32_t{4});
  writer.add(arch + ".rope.scaling.type", "yarn").add(arch + ".rope.scaling.factor", 32.0F);
  writer.add(arch + ".rope.scaling.original_context_length", uint32_t{64});
  writer.add_f32("token_embd.weight", {64, 32}, std::vector<float>(32 * 64, 1.0F));
  const TempDir dir;
  const auto checkpoint = value_or_throw(
      Checkpoint::open(value_or_throw(resolve_model(dir.write("m.gguf", writer.bytes())))));
  const DecoderSpec spec = value_or_throw(read_decoder_spec(checkpoint));
  EXPECT_EQ(spec.names.sinks, "blk.{}.attn_sinks.weight");
  EXPECT_EQ(spec.names.ffn_norm, "blk.{}.post_attention_norm.weight");
  EXPECT_FALSE(spec.alternating_gate_up);
  EXPECT_FALSE(spec.ropes[0].truncate);
  EXPECT_NEAR(spec.ropes[0].attention_factor, 1.3465736F, 1e-6F);
  EXPECT_EQ(spec.layers[0].attention.window, 128);
  EXPECT_EQ(spec.layers[1].attention.window, 0);
  EXPECT_EQ(spec.layers[3].ffn.gate_limit, 7.0F);
  EXPECT_TRUE(spec.layers[3].attention.sinks);
}

TEST(Registry, ReadsExpertsOfGguf) {
  for (const std::string arch : {"qwen3moe", "llama"}) {
    GgufWriter writer;
    writer.add("general.architecture", arch).add(arch + ".block_count", uint32_t{2});
    writer.add(arch + ".context_length", uint32_t{64})
        .add(arch + ".embedding_length", uint32_t{64});
    writer.add(arch + ".feed_forward_length", uint32_t{96});
    writer.add(arch + ".attention.head_count", uint32_t{4});
    writer.add(arch + ".expert_count", uint32_t{8}).add(arch + ".expert_used_count", uint32_t{2});
    if (arch == "qwen3moe") {
      writer.add(arch + ".expert_feed_forward_length", uint32_t{48});
    }
    writer.add_f32("token_embd.weight", {64, 32}, std::vector<float>(32 * 64, 1.0F));
    const TempDir dir;
    const auto checkpoint = value_or_throw(
        Checkpoint::open(value_or_throw(resolve_model(dir.write("m.gguf", writer.bytes())))));
    const DecoderSpec spec = value_or_throw(read_decoder_spec(checkpoint));
    EXPECT_EQ(spec.layers[1].ffn.num_experts, 8) << arch;
    EXPECT_EQ(spec.layers[1].ffn.experts_per_token, 2);
    EXPECT_EQ(spec.layers[1].ffn.intermediate_size, arch == "llama" ? 96 : 48);
    EXPECT_TRUE(spec.layers[1].ffn.normalise);
  }
}

// A feature that no kernel supports is refused with the layer's number, whatever the architecture file says.
TEST(DecoderSpecCheck, NamesTheLayer) {
  const DecoderSpec good = value_or_throw(spec_of(llama_config()));
  const auto error_of = [&good](const auto& change) {
    DecoderSpec spec = good;
    change(spec.layers[2].attention);
    const auto checked = check_decoder_spec(spec);
    return checked ? std::string() : checked.error().message;
  };
  EXPECT_EQ(error_of([](AttentionSpec&) {}), "");
  EXPECT_EQ(error_of([](AttentionSpec& layer) { layer.rope = kNoRope; }), "");
  EXPECT_EQ(error_of([](AttentionSpec& layer) { layer.head_dim_v = 8; }),
            "layer 2: head sizes 16 of keys and 8 of values are not equal");
  EXPECT_EQ(error_of([](AttentionSpec& layer) { layer.num_kv_heads = 3; }),
            "layer 2: 4 attention heads are no multiple of 3 key-value heads");
  EXPECT_EQ(error_of([](AttentionSpec& layer) { layer.head_dim = 12; }),
            "layer 2: head size 12 is not a multiple of 8");
  EXPECT_EQ(error_of([](AttentionSpec& layer) { layer.head_dim = layer.head_dim_v = 8; }),
            "layer 2: rope rotates 16 of 8 elements of a head");
  EXPECT_EQ(error_of([](AttentionSpec& layer) { layer.rope = 1; }), "layer 2: rope 1 of 1");
}

TEST(RopeSpec, FrequenciesOfTheRule) {
  RopeSpec rope;
  rope.rot_dim = 8;
  rope.theta = 10000.0F;
  const auto plain = rope_inv_freq(rope);
  ASSERT_EQ(plain.size(), 4U);
  EXPECT_FLOAT_EQ(plain[0], 1.0F);
  EXPECT_FLOAT_EQ(plain[2], 0.01F);
  rope.scaling = RopeScaling::kLinear;
  rope.factor = 4.0F;
  EXPECT_FLOAT_EQ(rope_inv_freq(rope)[2], 0.0025F);
  rope.scaling = RopeScaling::kLlama3;
  rope.original_max_position = 8192;
  EXPECT_FLOAT_EQ(rope_inv_freq(rope)[0], 1.0F);  // a short wavelength is kept
  rope.theta = 1e9F;
  EXPECT_FLOAT_EQ(rope_inv_freq(rope)[3],
                  rope_inv_freq({8, 1e9F})[3] / 4.0F);  // a long one is divided
}

}  // namespace
}  // namespace warprow
