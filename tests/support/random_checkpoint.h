// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/decoder_oracle.h"
#include "tests/support/safetensors_writer.h"

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace warprow::test {

// Draws a checkpoint's tensors under Hugging Face's names and gives the same values to the oracle. Only tensors that
// the oracle's layer uses are written.
class RandomCheckpoint {
 public:
  // norm_offset: the constant that the model adds to stored norm weights. prefix: of all names but the head's.
  RandomCheckpoint(OracleModel& model,
                   uint32_t seed,
                   double norm_offset = 0.0,
                   std::string prefix = "model.")
      : model_(model), random_(seed), norm_offset_(norm_offset), prefix_(std::move(prefix)) {}

  // Which norms a layer has.
  struct Norms {
    bool qk = false;
    bool post = false;
    const char* ffn = "post_attention_layernorm";  // name of the norm before the feed-forward block
  };

  // loud: ids whose rows of the head are larger than the others', so that answers are mostly of them. Not if tied.
  void add_ends(bool tied, const std::vector<int>& loud = {}) {
    loud_ = loud;
    model_.embed = matrix(prefix_ + "embed_tokens", model_.vocab, model_.hidden);
    model_.final_norm = norm(prefix_ + "norm", model_.hidden);
    model_.head = tied ? model_.embed : matrix("lm_head", model_.vocab, model_.hidden);
  }

  void add_layer(int index, const Norms& norms, bool sinks = false) {
    OracleLayer& layer = model_.layers[static_cast<size_t>(index)];
    const std::string at = prefix_ + "layers." + std::to_string(index) + ".";
    const int hidden = model_.hidden;
    const int q_size = layer.num_heads * layer.head_dim;
    const int kv_size = layer.num_kv_heads * layer.head_dim;
    layer.input_norm = norm(at + "input_layernorm", hidden);
    layer.q = matrix(at + "self_attn.q_proj", q_size, hidden);
    layer.k = matrix(at + "self_attn.k_proj", kv_size, hidden);
    layer.v = matrix(at + "self_attn.v_proj", kv_size, hidden);
    layer.o = matrix(at + "self_attn.o_proj", hidden, q_size);
    if (norms.qk) {
      layer.q_norm = norm(at + "self_attn.q_norm", layer.head_dim);
      layer.k_norm = norm(at + "self_attn.k_norm", layer.head_dim);
    }
    if (sinks) {
      layer.sinks = draw(at + "self_attn.sinks", {layer.num_heads}, 0.0F, 1.0F);
    }
    layer.ffn_norm = norm(at + norms.ffn, hidden);
    layer.gate = matrix(at + "mlp.gate_proj", layer.intermediate, hidden);
    layer.up = matrix(at + "mlp.up_proj", layer.intermediate, hidden);
    layer.down = matrix(at + "mlp.down_proj", hidden, layer.intermediate);
    if (norms.post) {
      layer.attention_post_norm = norm(at + "post_attention_layernorm", hidden);
      layer.ffn_post_norm = norm(at + "post_feedforward_layernorm", hidden);
    }
  }

  // A tensor that the oracle does not read.
  void add(const std::string& name,
           const std::vector<int64_t>& shape,
           std::span<const float> values) {
    writer_.add_f32(name, shape, values);
  }

  [[nodiscard]] Bytes bytes() const { return writer_.bytes(); }

 private:
  Doubles draw(const std::string& name, const std::vector<int64_t>& shape, float mean, float size) {
    std::normal_distribution<float> normal(mean, size);
    int64_t count = 1;
    for (const int64_t n : shape) {
      count *= n;
    }
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) {
      value = normal(random_);
    }
    for (const int row : name == "lm_head.weight" ? loud_ : std::vector<int>()) {
      for (int64_t i = 0; i < shape.back(); ++i) {
        values[static_cast<size_t>(row * shape.back() + i)] *= 4;
      }
    }
    writer_.add_f32(name, shape, values);
    return {values.begin(), values.end()};
  }
  Doubles matrix(const std::string& name, int64_t rows, int64_t cols) {
    return draw(name + ".weight", {rows, cols}, 0.0F, 0.25F);
  }
  Doubles norm(const std::string& name, int64_t width) {
    Doubles weight = draw(name + ".weight", {width}, static_cast<float>(1.0 - norm_offset_), 0.2F);
    for (double& w : weight) {
      w += norm_offset_;
    }
    return weight;
  }

  OracleModel& model_;
  std::mt19937 random_;
  double norm_offset_;
  std::string prefix_;
  std::vector<int> loud_;
  SafetensorsWriter writer_;
};

}  // namespace warprow::test
