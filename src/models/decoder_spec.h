// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/rope_spec.h"

#include <cstdint>
#include <string>
#include <vector>

namespace warprow {

// What one layer's attention sees.
struct LayerSpec {
  int32_t window = 0;  // sliding window in tokens; 0: everything before it
};

// Where a decoder's weights are found: tensor names of a checkpoint, with {} for the layer number.
// An empty name means that the tensor does not exist in this family.
struct DecoderWeightNames {
  std::string embed, final_norm, head;
  std::string input_norm, q, k, v, o, q_norm, k_norm;
  std::string post_norm, gate, up, down;
  std::string rope_factors;  // GGUF: per-frequency divisors
};

// Everything that tells one decoder-only transformer from another. The forward (models/decoder.h)
// is written once and driven by this; an architecture file maps a config.json or GGUF metadata to
// it.
struct DecoderSpec {
  std::string architecture;  // as Hugging Face names it, for people
  int32_t num_layers = 0;
  int32_t hidden_size = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t intermediate_size = 0;
  int32_t vocab_size = 0;
  int32_t max_position = 0;
  float rms_eps = 1e-5F;
  bool tied_head = false;
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;  // RMS norm over each head of Q and K before rope
  bool permuted_qk =
      false;  // Q and K rows lie as interleaved rope pairs (GGUF of the llama family)
  RopeSpec rope;
  std::vector<LayerSpec> layers;  // [num_layers]
  DecoderWeightNames names;

  [[nodiscard]] float attention_scale() const;
  [[nodiscard]] int32_t q_size() const { return num_heads * head_dim; }
  [[nodiscard]] int32_t kv_size() const { return num_kv_heads * head_dim; }
  [[nodiscard]] int32_t qkv_size() const { return q_size() + 2 * kv_size(); }
};

}  // namespace warprow
