// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "models/encoder_spec.h"
#include "models/layer_spec.h"
#include "models/rope_spec.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace warprow {

// Where a decoder's weights are found: tensor names of a checkpoint, with {} for the layer number.
// An empty name means that the tensor does not exist in this family.
struct DecoderWeightNames {
  std::string embed, final_norm, head;
  std::string input_norm, q, k, v, o, q_norm, k_norm, sinks;
  // Fused tensors in place of q, k and v, and of gate and up, one matrix below the other.
  std::string qkv, gate_up;
  std::string attention_post_norm;
  std::string ffn_norm, gate, up, down;
  std::string ffn_post_norm;
  std::string router;
  std::string choice_bias;  // FfnSpec::choice_bias; the tensor itself
  // FfnSpec::own_norms: the router's norm, the experts' scales, their norms, and the norm behind the shared expert.
  std::string router_norm, expert_scales, experts_norm, experts_post_norm, shared_post_norm;
  // One tensor for each expert, with a second {} for its number.
  std::string expert_gate, expert_up, expert_down;
  // Or tensors of all experts, one below the other. gate_up: an expert's gate rows, then its up rows.
  std::string experts_gate_up, experts_gate, experts_up, experts_down;
  // Their biases, a row for each expert.
  std::string experts_gate_up_bias, experts_gate_bias, experts_up_bias, experts_down_bias;
  std::string shared_gate, shared_up, shared_down;  // of the expert that all tokens take
  std::string shared_scale;  // the row whose product with a token opens its gate
  // Gated delta nets. Four input matrices, or two whose rows are ordered by key heads.
  std::string delta_qkv, delta_z, delta_b, delta_a;
  std::string delta_qkvz, delta_ba;
  std::string delta_conv, delta_rate, delta_dt_bias, delta_norm, delta_out;
  std::string rope_factors;  // GGUF: per-frequency divisors
  // LayerSpec::layer_input_size: a table of all layers' inputs by id, their product with the embedding, its norm; then
  // those of a layer.
  std::string layer_inputs, layer_inputs_product, layer_inputs_norm;
  std::string layer_input_gate, layer_input_out, layer_input_post_norm;
  std::string layer_scalar;
  bool operator==(const DecoderWeightNames&) const = default;
};

// Everything that distinguishes one transformer from another. The forwards (models/decoder.h, models/encoder.h) are
// written once and driven by this. An architecture file maps a config.json or GGUF metadata to it.
struct DecoderSpec {
  std::string architecture;  // as Hugging Face names it, for messages
  int32_t num_layers = 0;
  int32_t hidden_size = 0;
  int32_t vocab_size = 0;
  int32_t max_position = 0;
  float rms_eps = 1e-5F;
  float embed_scale = 1.0F;  // of the embeddings of ids
  float norm_offset = 0.0F;  // added to the weights of all norms; 1: they are stored as differences
  float logits_divisor = 1.0F;
  float logits_soft_cap = 0.0F;  // of the divided logits; 0: none
  bool tied_head = false;
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  // Q and K rows lie as interleaved rope pairs (GGUF of the llama family).
  bool permuted_qk = false;
  // How tensors of all experts lie in the checkpoint.
  bool alternating_gate_up = false;  // experts_gate_up has rows of gate and up in turn
  bool transposed_experts = false;   // each expert's matrix has its inputs as rows
  bool mxfp4_experts = false;        // in MXFP4, as pairs of tensors (layers/weight_format.h)
  std::vector<RopeSpec> ropes;       // indexed by AttentionSpec::rope
  std::vector<LayerSpec> layers;     // [num_layers]
  DecoderWeightNames names;
  std::optional<EncoderSpec> encoder;  // else a decoder
  bool operator==(const DecoderSpec&) const = default;
};

// Makes all layers alike.
void set_uniform_layers(DecoderSpec& spec, const LayerSpec& layer);

// Sets the length of the longest sequence, which decides the factors of long ropes.
void set_longest_sequence(DecoderSpec& spec, int32_t max_len);

// Errors: the first property of a layer that no kernel supports, with the layer.
Result<void> check_decoder_spec(const DecoderSpec& spec);

}  // namespace warprow
