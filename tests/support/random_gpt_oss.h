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

// As RandomModel, for gpt-oss: experts in bf16 as transformers writes them, or in MXFP4 as published.
struct RandomGptOss {
  bool mxfp4 = false;
  int32_t num_heads = 8;
  int32_t num_kv_heads = 1;
  int32_t num_layers = 4;
  int32_t hidden_size = 192;
  int32_t intermediate_size = 160;
  int32_t num_experts = 8;
  int32_t num_chosen = 3;
  int32_t vocab_size = 512;
  int32_t window = 32;
  uint32_t seed = 1;

  static constexpr int32_t kHeadDim = 64;

  // Writes config.json and model.safetensors into dir and returns its path.
  std::string write(const TempDir& dir) const {
    dir.write("config.json", config().dump());
    dir.write("model.safetensors", weights());
    return dir.path().string();
  }

 private:
  [[nodiscard]] nlohmann::json config() const {
    nlohmann::json c = {{"architectures", {"GptOssForCausalLM"}},
                        {"head_dim", kHeadDim},
                        {"num_attention_heads", num_heads},
                        {"num_key_value_heads", num_kv_heads},
                        {"num_hidden_layers", num_layers},
                        {"hidden_size", hidden_size},
                        {"intermediate_size", intermediate_size},
                        {"num_local_experts", num_experts},
                        {"num_experts_per_tok", num_chosen},
                        {"vocab_size", vocab_size},
                        {"max_position_embeddings", 1024},
                        {"rms_norm_eps", 1e-5},
                        {"rope_theta", 10000.0},
                        {"rope_scaling",
                         {{"rope_type", "yarn"},
                          {"factor", 4.0},
                          {"original_max_position_embeddings", 256},
                          {"truncate", false}}},
                        {"sliding_window", window},
                        {"swiglu_limit", 2.0}};
    if (mxfp4) {
      c["quantization_config"] = {{"quant_method", "mxfp4"}};
    }
    return c;
  }

  [[nodiscard]] Bytes weights() const {
    std::mt19937 random(seed);
    SafetensorsWriter w;
    const auto add = [&](const std::string& name,
                         const std::vector<int64_t>& shape,
                         float mean,
                         float deviation) {
      std::normal_distribution<float> normal(mean, deviation);
      int64_t n = 1;
      for (const int64_t extent : shape) {
        n *= extent;
      }
      Bytes bytes;
      for (int64_t i = 0; i < n; ++i) {
        put(bytes, f32_to_bf16(normal(random)));
      }
      w.add(name, "BF16", shape, bytes);
    };
    const auto matrix = [&](const std::string& name, int64_t rows, int64_t cols, float gain) {
      add(name, {rows, cols}, 0.0F, gain / std::sqrt(static_cast<float>(cols)));
    };
    // Of all experts. Uniform e2m1 numbers have a deviation of 2.9.
    const auto experts = [&](const std::string& name, int64_t rows, int64_t cols) {
      if (!mxfp4) {
        add(name, {num_experts, cols, rows}, 0.0F, 1.0F / std::sqrt(static_cast<float>(cols)));
        return;
      }
      const int scale = 127 + static_cast<int>(std::lround(
                                  std::log2(1.0 / (2.9 * std::sqrt(static_cast<double>(cols))))));
      Bytes numbers;
      Bytes scales;
      for (int64_t i = 0; i < num_experts * rows * cols / 32; ++i) {
        scales.push_back(static_cast<std::byte>(scale - 1 + static_cast<int>(random() % 3)));
        for (int byte = 0; byte < 16; ++byte) {
          numbers.push_back(static_cast<std::byte>(random()));
        }
      }
      w.add(name + "_blocks", "U8", {num_experts, rows, cols / 32, 16}, numbers);
      w.add(name + "_scales", "U8", {num_experts, rows, cols / 32}, scales);
    };
    const int64_t q = int64_t{num_heads} * kHeadDim;
    const int64_t kv = int64_t{num_kv_heads} * kHeadDim;
    matrix("model.embed_tokens.weight", vocab_size, hidden_size, 8.0F);
    for (int32_t i = 0; i < num_layers; ++i) {
      const std::string layer = "model.layers." + std::to_string(i) + ".";
      const std::string attention = layer + "self_attn.";
      add(layer + "input_layernorm.weight", {hidden_size}, 1.0F, 0.1F);
      add(layer + "post_attention_layernorm.weight", {hidden_size}, 1.0F, 0.1F);
      for (const auto& [name, rows] : {std::pair{"q", q}, std::pair{"k", kv}, std::pair{"v", kv}}) {
        matrix(attention + name + "_proj.weight", rows, hidden_size, 1.0F);
        add(attention + name + "_proj.bias", {rows}, 0.0F, 0.5F);
      }
      matrix(attention + "o_proj.weight", hidden_size, q, 1.0F);
      add(attention + "o_proj.bias", {hidden_size}, 0.0F, 0.2F);
      add(attention + "sinks", {num_heads}, 1.0F, 1.0F);
      matrix(layer + "mlp.router.weight", num_experts, hidden_size, 2.0F);
      add(layer + "mlp.router.bias", {num_experts}, 0.0F, 0.5F);
      experts(layer + "mlp.experts.gate_up_proj", 2 * int64_t{intermediate_size}, hidden_size);
      add(layer + "mlp.experts.gate_up_proj_bias",
          {num_experts, 2 * int64_t{intermediate_size}},
          0.0F,
          0.3F);
      experts(layer + "mlp.experts.down_proj", hidden_size, intermediate_size);
      add(layer + "mlp.experts.down_proj_bias", {num_experts, hidden_size}, 0.0F, 0.2F);
    }
    add("model.norm.weight", {hidden_size}, 1.0F, 0.1F);
    matrix("lm_head.weight", vocab_size, hidden_size, 1.0F);
    return w.bytes();
  }
};

}  // namespace warprow::test
