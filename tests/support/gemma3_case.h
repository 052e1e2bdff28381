// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/oracle_check.h"

#include <cmath>
#include <string>

#include <nlohmann/json.hpp>

namespace warprow::test {

// A tiny Gemma 3 text model with random weights. It has a rope per kind of layer, sliding windows, head norms, norms
// before and after each block stored as weight - 1, tanh GELU and scaled embeddings.

inline constexpr int kGemma3Layers = 4;
inline constexpr int kGemma3Window = 12;

inline bool is_gemma3_global(int layer) { return layer % 2 == 1; }

inline nlohmann::json gemma3_config() {
  return {{"architectures", {"Gemma3ForCausalLM"}},
          {"num_hidden_layers", kGemma3Layers},
          {"hidden_size", 96},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 16},
          {"intermediate_size", 72},
          {"vocab_size", 96},
          {"max_position_embeddings", 256},
          {"rms_norm_eps", 1e-6},
          {"hidden_activation", "gelu_pytorch_tanh"},
          {"query_pre_attn_scalar", 24},
          {"sliding_window", kGemma3Window},
          {"sliding_window_pattern", 2},
          {"rope_theta", 1000.0},
          {"rope_local_base_freq", 50.0},
          {"rope_scaling", {{"rope_type", "linear"}, {"factor", 4.0}}},
          {"attn_logit_softcapping", nullptr},
          {"final_logit_softcapping", nullptr}};
}

// The same as transformers 5 writes it.
inline nlohmann::json nested_gemma3_config() {
  nlohmann::json out = gemma3_config();
  for (const char* key :
       {"rope_theta", "rope_local_base_freq", "rope_scaling", "sliding_window_pattern"}) {
    out.erase(key);
  }
  out["rope_parameters"] = {
      {"full_attention", {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 1000.0}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 50.0}}}};
  out["layer_types"] = {
      "sliding_attention", "full_attention", "sliding_attention", "full_attention"};
  return out;
}

inline OracleModel gemma3_oracle() {
  OracleModel model;
  model.hidden = 96;
  model.vocab = 96;
  model.eps = 1e-6;
  model.embed_scale = std::sqrt(96.0);
  for (int i = 0; i < kGemma3Layers; ++i) {
    OracleLayer layer;
    layer.num_heads = 4;
    layer.num_kv_heads = 2;
    layer.head_dim = layer.rot_dim = 16;
    layer.window = is_gemma3_global(i) ? 0 : kGemma3Window;
    layer.theta = is_gemma3_global(i) ? 1000.0 : 50.0;
    layer.stretch = is_gemma3_global(i) ? 4.0 : 1.0;
    layer.scale = 1.0 / std::sqrt(24.0);
    layer.intermediate = 72;
    layer.gelu = true;
    model.layers.push_back(layer);
  }
  return model;
}

inline void expect_gemma3_equals_oracle(const nlohmann::json& config,
                                        const std::string& device = "cpu",
                                        const std::string& prefix = "model.") {
  OracleModel model = gemma3_oracle();
  RandomCheckpoint checkpoint(model, 7, 1.0, prefix);
  checkpoint.add_ends(true);
  for (int i = 0; i < kGemma3Layers; ++i) {
    checkpoint.add_layer(i, {.qk = true, .post = true, .ffn = "pre_feedforward_layernorm"});
  }
  expect_equals_oracle(config, checkpoint.bytes(), model, device);
}

}  // namespace warprow::test
