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
//
// Two runs that round differently can be compared only where they choose the same experts, as another expert is another
// function. So one input for each expert carries the choice: a token's embedding is kMark there for num_chosen experts and 0
// for the others, no layer adds to these inputs, and the router multiplies them by kMarkGain. Other inputs decide the
// weights of the chosen experts.
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
  static constexpr float kMark = 2.0F;
  static constexpr float kMarkGain = 4.0F;

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
    // change: of an element's number and its random value.
    const auto add_changed = [&](const std::string& name,
                                 const std::vector<int64_t>& shape,
                                 float mean,
                                 float deviation,
                                 auto change) {
      std::normal_distribution<float> normal(mean, deviation);
      int64_t n = 1;
      for (const int64_t extent : shape) {
        n *= extent;
      }
      int64_t i = 0;
      const auto next = [&] { return change(i++, normal(random)); };
      w.add(name, "BF16", shape, bf16_bytes(static_cast<size_t>(n), next));
    };
    const auto add = [&](const std::string& name,
                         const std::vector<int64_t>& shape,
                         float mean,
                         float deviation) {
      add_changed(name, shape, mean, deviation, [](int64_t /*i*/, float v) { return v; });
    };
    const auto matrix = [&](const std::string& name, int64_t rows, int64_t cols, float gain) {
      add(name, {rows, cols}, 0.0F, gain / std::sqrt(static_cast<float>(cols)));
    };
    // Outputs of a layer, row by row (or in columns): none for the inputs that carry the choice.
    const auto add_outputs = [&](const std::string& name,
                                 const std::vector<int64_t>& shape,
                                 float deviation,
                                 int64_t cols = 1) {
      add_changed(name, shape, 0.0F, deviation, [&](int64_t i, float v) {
        return i / cols % hidden_size < num_experts ? 0.0F : v;
      });
    };
    // Of all experts. Uniform e2m1 numbers with these scales have a deviation of 3.8.
    const auto experts = [&](const std::string& name, int64_t rows, int64_t cols, bool outputs) {
      if (!mxfp4) {
        const float deviation = 1.0F / std::sqrt(static_cast<float>(cols));
        outputs ? add_outputs(name, {num_experts, cols, rows}, deviation)
                : add(name, {num_experts, cols, rows}, 0.0F, deviation);
        return;
      }
      const int scale = 127 + static_cast<int>(std::lround(
                                  std::log2(1.0 / (3.8 * std::sqrt(static_cast<double>(cols))))));
      Bytes numbers;
      Bytes scales;
      for (int64_t i = 0; i < num_experts * rows * cols / 32; ++i) {
        const bool is_zero = outputs && i / (cols / 32) % rows < num_experts;
        scales.push_back(static_cast<std::byte>(scale - 1 + static_cast<int>(random() % 3)));
        for (int byte = 0; byte < 16; ++byte) {
          numbers.push_back(is_zero ? std::byte{0} : static_cast<std::byte>(random()));
        }
      }
      w.add(name + "_blocks", "U8", {num_experts, rows, cols / 32, 16}, numbers);
      w.add(name + "_scales", "U8", {num_experts, rows, cols / 32}, scales);
    };
    const int64_t q = int64_t{num_heads} * kHeadDim;
    const int64_t kv = int64_t{num_kv_heads} * kHeadDim;
    add_changed("model.embed_tokens.weight",
                {vocab_size, hidden_size},
                0.0F,
                8.0F / std::sqrt(static_cast<float>(hidden_size)),
                [&](int64_t i, float v) {
                  const int64_t input = i % hidden_size;
                  if (input >= num_experts) {
                    return v;
                  }
                  const int64_t token = i / hidden_size;
                  return (input * 5 + token * 3) % num_experts < num_chosen ? kMark : 0.0F;
                });
    for (int32_t i = 0; i < num_layers; ++i) {
      const std::string layer = "model.layers." + std::to_string(i) + ".";
      const std::string attention = layer + "self_attn.";
      add(layer + "input_layernorm.weight", {hidden_size}, 1.0F, 0.1F);
      add(layer + "post_attention_layernorm.weight", {hidden_size}, 1.0F, 0.1F);
      for (const auto& [name, rows] : {std::pair{"q", q}, std::pair{"k", kv}, std::pair{"v", kv}}) {
        matrix(attention + name + "_proj.weight", rows, hidden_size, 1.0F);
        add(attention + name + "_proj.bias", {rows}, 0.0F, 0.5F);
      }
      add_outputs(attention + "o_proj.weight",
                  {hidden_size, q},
                  1.0F / std::sqrt(static_cast<float>(q)),
                  q);
      add_outputs(attention + "o_proj.bias", {hidden_size}, 0.2F);
      add(attention + "sinks", {num_heads}, 1.0F, 1.0F);
      add_changed(layer + "mlp.router.weight",
                  {num_experts, hidden_size},
                  0.0F,
                  0.5F / std::sqrt(static_cast<float>(hidden_size)),
                  [&](int64_t n, float v) {
                    const int64_t input = n % hidden_size;
                    const int64_t marked = (n / hidden_size + i) % num_experts;
                    return input >= num_experts ? v : input == marked ? kMarkGain : 0.0F;
                  });
      add(layer + "mlp.router.bias", {num_experts}, 0.0F, 0.2F);
      experts(
          layer + "mlp.experts.gate_up_proj", 2 * int64_t{intermediate_size}, hidden_size, false);
      add(layer + "mlp.experts.gate_up_proj_bias",
          {num_experts, 2 * int64_t{intermediate_size}},
          0.0F,
          0.3F);
      experts(layer + "mlp.experts.down_proj", hidden_size, intermediate_size, true);
      add_outputs(layer + "mlp.experts.down_proj_bias", {num_experts, hidden_size}, 0.2F);
    }
    add("model.norm.weight", {hidden_size}, 1.0F, 0.1F);
    matrix("lm_head.weight", vocab_size, hidden_size, 1.0F);
    return w.bytes();
  }
};

}  // namespace warprow::test
