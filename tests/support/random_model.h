// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"
#include "tests/support/byte_writer.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_dir.h"

#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace warprow::test {

// A small model with well-conditioned random bf16 weights. Every matrix keeps the size of its input. Logits have a
// standard deviation of about 1, and rounding to bf16 changes them by about 0.01.
struct RandomModel {
  std::string family = "llama";  // llama | qwen2 | qwen3 | qwen3_moe | mistral
  int32_t head_dim = 64;
  int32_t num_heads = 4;
  int32_t num_kv_heads = 2;
  int32_t num_layers = 4;
  int32_t hidden_size = 256;
  int32_t intermediate_size = 512;  // of an expert, if there are any
  int32_t num_experts = 0;          // qwen3_moe
  int32_t num_chosen = 0;           // experts of a token
  int32_t vocab_size = 512;
  bool tied_head = false;
  int32_t window = 0;              // sliding window of the layers below
  int32_t first_window_layer = 0;  // this layer and all later ones have the window
  int32_t max_position = 1024;
  uint32_t seed = 1;

  // Writes config.json and model.safetensors into dir and returns its path.
  std::string write(const TempDir& dir) const {
    dir.write("config.json", config().dump());
    dir.write("model.safetensors", weights());
    return dir.path().string();
  }

 private:
  [[nodiscard]] nlohmann::json config() const {
    const bool qwen = family.starts_with("qwen");
    nlohmann::json c = {{"model_type", family},
                        {"architectures", {architecture()}},
                        {"hidden_act", "silu"},
                        {"torch_dtype", "bfloat16"},
                        {"head_dim", head_dim},
                        {"num_attention_heads", num_heads},
                        {"num_key_value_heads", num_kv_heads},
                        {"num_hidden_layers", num_layers},
                        {"hidden_size", hidden_size},
                        {"intermediate_size", intermediate_size},
                        {"vocab_size", vocab_size},
                        {"max_position_embeddings", max_position},
                        {"rms_norm_eps", 1e-6},
                        {"rope_theta", 10000.0},
                        {"tie_word_embeddings", tied_head}};
    if (family == "mistral" && window > 0) {
      c["sliding_window"] = window;
    }
    if (qwen) {
      c["use_sliding_window"] = window > 0;
      c["attention_bias"] = false;
      if (window > 0) {
        c["sliding_window"] = window;
        c["max_window_layers"] = first_window_layer;
      }
    }
    if (num_experts > 0) {
      c["num_experts"] = num_experts;
      c["num_experts_per_tok"] = num_chosen;
      c["moe_intermediate_size"] = intermediate_size;
      c["norm_topk_prob"] = true;
    }
    return c;
  }

  [[nodiscard]] std::string architecture() const {
    static const std::map<std::string, std::string> architectures = {
        {"llama", "LlamaForCausalLM"},
        {"mistral", "MistralForCausalLM"},
        {"qwen2", "Qwen2ForCausalLM"},
        {"qwen3", "Qwen3ForCausalLM"},
        {"qwen3_moe", "Qwen3MoeForCausalLM"}};
    const auto found = architectures.find(family);
    WR_CHECK(found != architectures.end(), "RandomModel has no family {}", family);
    return found->second;
  }

  [[nodiscard]] Bytes weights() const {
    std::mt19937 random(seed);
    SafetensorsWriter w;
    const auto add = [&](const std::string& name,
                         const std::vector<int64_t>& shape,
                         float mean,
                         float deviation) {
      std::normal_distribution<float> normal(mean, deviation);
      size_t n = 1;
      for (const int64_t extent : shape) {
        n *= static_cast<size_t>(extent);
      }
      w.add(name, "BF16", shape, bf16_bytes(n, [&] { return normal(random); }));
    };
    const auto matrix = [&](const std::string& name, int64_t rows, int64_t cols, float gain) {
      add(name, {rows, cols}, 0.0F, gain / std::sqrt(static_cast<float>(cols)));
    };
    const auto norm = [&](const std::string& name, int64_t n) { add(name, {n}, 1.0F, 0.1F); };
    const int64_t q = int64_t{num_heads} * head_dim;
    const int64_t kv = int64_t{num_kv_heads} * head_dim;
    constexpr float kLogitDeviation = 1.0F;
    matrix(
        "model.embed_tokens.weight", vocab_size, hidden_size, tied_head ? kLogitDeviation : 8.0F);
    for (int32_t i = 0; i < num_layers; ++i) {
      const std::string layer = "model.layers." + std::to_string(i) + ".";
      const std::string attention = layer + "self_attn.";
      norm(layer + "input_layernorm.weight", hidden_size);
      norm(layer + "post_attention_layernorm.weight", hidden_size);
      for (const auto& [name, rows] : {std::pair{"q", q}, std::pair{"k", kv}, std::pair{"v", kv}}) {
        matrix(attention + name + "_proj.weight", rows, hidden_size, 1.0F);
        if (family == "qwen2") {
          add(attention + name + "_proj.bias", {rows}, 0.0F, 0.5F);
        }
      }
      if (family.starts_with("qwen3")) {
        norm(attention + "q_norm.weight", head_dim);
        norm(attention + "k_norm.weight", head_dim);
      }
      matrix(attention + "o_proj.weight", hidden_size, q, 1.0F);
      const auto feed_forward = [&](const std::string& prefix) {
        matrix(prefix + "gate_proj.weight", intermediate_size, hidden_size, 1.0F);
        matrix(prefix + "up_proj.weight", intermediate_size, hidden_size, 1.0F);
        matrix(prefix + "down_proj.weight", hidden_size, intermediate_size, 1.0F);
      };
      if (num_experts == 0) {
        feed_forward(layer + "mlp.");
      } else {
        matrix(layer + "mlp.gate.weight", num_experts, hidden_size, 2.0F);
      }
      for (int32_t e = 0; e < num_experts; ++e) {
        feed_forward(layer + "mlp.experts." + std::to_string(e) + ".");
      }
    }
    norm("model.norm.weight", hidden_size);
    if (!tied_head) {
      matrix("lm_head.weight", vocab_size, hidden_size, kLogitDeviation);
    }
    return w.bytes();
  }
};

}  // namespace warprow::test
