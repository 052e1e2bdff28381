// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/dtype.h"
#include "tests/support/byte_writer.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_dir.h"

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace warprow::test {

// As RandomModel, for Qwen3.5 (text), or with experts for Qwen3-Next: every fourth layer has attention, the others gated
// delta nets.
struct RandomHybrid {
  int32_t head_dim = 64;
  int32_t num_heads = 4;
  int32_t num_kv_heads = 2;
  int32_t num_layers = 4;
  int32_t hidden_size = 256;
  int32_t intermediate_size = 512;  // of an expert, if there are any
  int32_t num_experts = 0;
  int32_t num_chosen = 0;
  int32_t num_key_heads = 2;
  int32_t num_value_heads = 4;
  int32_t key_dim = 64;
  int32_t value_dim = 64;
  int32_t vocab_size = 512;
  bool mtp = false;  // with the layer that predicts further tokens
  uint32_t seed = 1;

  // Writes config.json and model.safetensors into dir and returns its path.
  std::string write(const TempDir& dir) const {
    dir.write("config.json", config().dump());
    dir.write("model.safetensors", weights());
    return dir.path().string();
  }

 private:
  static constexpr int32_t kConvLen = 4;
  [[nodiscard]] bool has_experts() const { return num_experts > 0; }

  [[nodiscard]] nlohmann::json config() const {
    nlohmann::json c = {
        {"model_type", has_experts() ? "qwen3_next" : "qwen3_5_text"},
        {"architectures", {has_experts() ? "Qwen3NextForCausalLM" : "Qwen3_5ForCausalLM"}},
        {"hidden_act", "silu"},
        {"torch_dtype", "bfloat16"},
        {"head_dim", head_dim},
        {"num_attention_heads", num_heads},
        {"num_key_value_heads", num_kv_heads},
        {"num_hidden_layers", num_layers},
        {"hidden_size", hidden_size},
        {"intermediate_size", intermediate_size},
        {"vocab_size", vocab_size},
        {"max_position_embeddings", 1024},
        {"rms_norm_eps", 1e-6},
        {"rope_theta", 10000.0},
        {"partial_rotary_factor", 0.25},
        {"full_attention_interval", 4},
        {"linear_num_key_heads", num_key_heads},
        {"linear_num_value_heads", num_value_heads},
        {"linear_key_head_dim", key_dim},
        {"linear_value_head_dim", value_dim},
        {"linear_conv_kernel_dim", kConvLen},
        {"tie_word_embeddings", false}};
    if (has_experts()) {
      c["num_experts"] = num_experts;
      c["num_experts_per_tok"] = num_chosen;
      c["moe_intermediate_size"] = intermediate_size;
      c["shared_expert_intermediate_size"] = intermediate_size;
      c["norm_topk_prob"] = true;
    }
    return c;
  }

  class Writer {
   public:
    explicit Writer(uint32_t seed) : random_(seed) {}
    // Every loud-th row is larger than the others; 0: none is.
    void add(const std::string& name,
             const std::vector<int64_t>& shape,
             float mean,
             float deviation,
             int64_t loud = 0) {
      std::normal_distribution<float> normal(mean, deviation);
      int64_t n = 1;
      for (const int64_t extent : shape) {
        n *= extent;
      }
      int64_t i = 0;
      const auto next = [&] {
        const bool larger = loud > 0 && i++ / shape.back() % loud == 1;
        return normal(random_) * (larger ? 8.0F : 1.0F);
      };
      file_.add(name, "BF16", shape, bf16_bytes(static_cast<size_t>(n), next));
    }
    void matrix(const std::string& name, int64_t rows, int64_t cols, float gain = 1.0F) {
      add(name, {rows, cols}, 0.0F, gain / std::sqrt(static_cast<float>(cols)));
    }
    // Stored as the difference from one.
    void norm(const std::string& name, int64_t n) { add(name, {n}, 0.0F, 0.1F); }
    [[nodiscard]] Bytes bytes() const { return file_.bytes(); }

   private:
    std::mt19937 random_;
    SafetensorsWriter file_;
  };

  void add_delta_net(Writer& w, const std::string& prefix) const {
    const int64_t keys = int64_t{num_key_heads} * key_dim;
    const int64_t values = int64_t{num_value_heads} * value_dim;
    const int64_t channels = 2 * keys + values;
    if (has_experts()) {
      w.matrix(prefix + "in_proj_qkvz.weight", channels + values, hidden_size);
      w.matrix(prefix + "in_proj_ba.weight", 2 * int64_t{num_value_heads}, hidden_size);
    } else {
      w.matrix(prefix + "in_proj_qkv.weight", channels, hidden_size);
      w.matrix(prefix + "in_proj_z.weight", values, hidden_size);
      w.matrix(prefix + "in_proj_b.weight", num_value_heads, hidden_size);
      w.matrix(prefix + "in_proj_a.weight", num_value_heads, hidden_size);
    }
    w.add(prefix + "conv1d.weight", {channels, 1, kConvLen}, 0.0F, 0.5F);
    w.add(prefix + "A_log", {num_value_heads}, -1.0F, 0.5F);
    w.add(prefix + "dt_bias", {num_value_heads}, -1.0F, 0.5F);
    w.add(prefix + "norm.weight", {value_dim}, 1.0F, 0.1F);
    w.matrix(prefix + "out_proj.weight", hidden_size, values);
  }

  void add_attention(Writer& w, const std::string& prefix) const {
    const int64_t q = int64_t{num_heads} * head_dim;
    const int64_t kv = int64_t{num_kv_heads} * head_dim;
    w.matrix(prefix + "q_proj.weight", 2 * q, hidden_size);
    w.matrix(prefix + "k_proj.weight", kv, hidden_size);
    w.matrix(prefix + "v_proj.weight", kv, hidden_size);
    w.norm(prefix + "q_norm.weight", head_dim);
    w.norm(prefix + "k_norm.weight", head_dim);
    w.matrix(prefix + "o_proj.weight", hidden_size, q);
  }

  void add_feed_forward(Writer& w, const std::string& prefix) const {
    w.matrix(prefix + "gate_proj.weight", intermediate_size, hidden_size);
    w.matrix(prefix + "up_proj.weight", intermediate_size, hidden_size);
    w.matrix(prefix + "down_proj.weight", hidden_size, intermediate_size);
  }

  void add_experts(Writer& w, const std::string& prefix) const {
    w.matrix(prefix + "gate.weight", num_experts, hidden_size, 2.0F);
    for (int32_t e = 0; e < num_experts; ++e) {
      add_feed_forward(w, prefix + "experts." + std::to_string(e) + ".");
    }
    add_feed_forward(w, prefix + "shared_expert.");
    w.matrix(prefix + "shared_expert_gate.weight", 1, hidden_size);
  }

  void add_layer(Writer& w, const std::string& layer, bool full_attention) const {
    w.norm(layer + "input_layernorm.weight", hidden_size);
    w.norm(layer + "post_attention_layernorm.weight", hidden_size);
    if (full_attention) {
      add_attention(w, layer + "self_attn.");
    } else {
      add_delta_net(w, layer + "linear_attn.");
    }
    if (has_experts()) {
      add_experts(w, layer + "mlp.");
    } else {
      add_feed_forward(w, layer + "mlp.");
    }
  }

  [[nodiscard]] Bytes weights() const {
    Writer w(seed);
    w.matrix("model.embed_tokens.weight", vocab_size, hidden_size, 8.0F);
    for (int32_t i = 0; i < num_layers; ++i) {
      add_layer(w, "model.layers." + std::to_string(i) + ".", i % 4 == 3);
    }
    if (mtp) {
      w.matrix("mtp.fc.weight", hidden_size, 2 * int64_t{hidden_size});
      for (const char* name : {"pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"}) {
        w.norm(std::string("mtp.") + name + ".weight", hidden_size);
      }
      add_layer(w, "mtp.layers.0.", true);
    }
    w.norm("model.norm.weight", hidden_size);
    // With mtp answers and drafts are mostly of a few ids, so that some drafts are right.
    w.add("lm_head.weight",
          {vocab_size, hidden_size},
          0.0F,
          1.0F / std::sqrt(static_cast<float>(hidden_size)),
          mtp ? 8 : 0);
    return w.bytes();
  }
};

}  // namespace warprow::test
