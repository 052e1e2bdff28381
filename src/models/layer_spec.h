// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/delta/gated_delta.h"
#include "kernels/experts/route_experts.h"

#include <algorithm>
#include <cstdint>

namespace warprow {

inline constexpr int32_t kNoRope = -1;
inline constexpr int32_t kOwnKv = -1;

// The attention of one layer.
struct AttentionSpec {
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;    // of queries and keys
  int32_t head_dim_v = 0;  // of values
  int32_t window = 0;      // sliding window in tokens; 0: all earlier tokens
  int32_t rope = 0;        // index in DecoderSpec::ropes; kNoRope: none
  float scale = 1.0F;      // factor of query times key
  float soft_cap = 0.0F;   // 0: none
  bool causal = true;      // else a token sees those behind it too; a window is on both sides
  bool sinks = false;      // a logit without a value for each head
  bool qk_norm = false;    // RMS norm over each head of Q and K before rope
  // RMS norm over all heads of Q together, and over all of K, before rope.
  bool wide_qk_norm = false;
  bool v_norm = false;           // RMS norm without weights over each head of V
  bool values_are_keys = false;  // V is the product of K's matrix, before K's norm and rope
  // The earlier layer whose keys and values it reads, in place of its own; kOwnKv: it has its own. That layer has the
  // same shape.
  int32_t kv_source = kOwnKv;
  // A sigmoid gate on each element of the output, which the product behind the norm also yields.
  bool output_gate = false;

  [[nodiscard]] bool has_own_kv() const { return kv_source == kOwnKv; }
  [[nodiscard]] int32_t q_size() const { return num_heads * head_dim; }
  [[nodiscard]] int32_t k_size() const { return num_kv_heads * head_dim; }
  [[nodiscard]] int32_t v_size() const { return num_kv_heads * head_dim_v; }
  // Of the layer's own products.
  [[nodiscard]] int32_t qkv_size() const {
    return q_size() + (has_own_kv() ? k_size() + v_size() : 0);
  }
  [[nodiscard]] int32_t out_size() const { return num_heads * head_dim_v; }
  [[nodiscard]] int32_t gate_size() const { return output_gate ? out_size() : 0; }
  bool operator==(const AttentionSpec&) const = default;
};

// Attention with rope and no other option, with scale 1 / sqrt(head size).
AttentionSpec plain_attention(int32_t num_heads, int32_t num_kv_heads, int32_t head_dim);

enum class Activation : uint8_t { kSilu, kGeluTanh, kGelu };

// The feed-forward of one layer: down(activation(gate x) * up x), or without a gate down(activation(up x)). With experts, a
// router chooses some of them for each token, and their results are summed by its weights.
struct FfnSpec {
  int32_t intermediate_size = 0;  // with experts: of each
  Activation activation = Activation::kSilu;
  bool gated = true;              // encoders may have none
  int32_t num_experts = 0;        // 0: one feed-forward that all tokens take
  int32_t experts_per_token = 0;  // with experts
  RouterScores scores = RouterScores::kSoftmax;
  bool normalise = false;      // the weights of a token's experts to a sum of 1
  bool expert_biases = false;  // of the router and of each expert's matrices
  float gate_limit =
      0.0F;  // with experts: gpt-oss's clamped SwiGLU (kernels/experts/expert_linear.h); 0: none
  bool choice_bias = false;    // kSigmoid: a bias that takes part in the choice alone
  int32_t num_groups = 1;      // kSigmoid: of equally many experts
  int32_t chosen_groups = 1;   // those with the largest scores, to which a token's experts belong
  float weights_scale = 1.0F;  // of the weights of a token's experts
  int32_t shared_size = 0;     // with experts: of one more, which all tokens take; 0: none
  bool shared_gate = true;     // that one times the sigmoid of a product
  // With experts and a shared one: each of the two has norms of its own, in front and behind. The router reads the rows
  // before them, after a norm whose weights are its own; and each expert has a scale of its weights.
  bool own_norms = false;

  [[nodiscard]] bool has_experts() const { return num_experts > 0; }
  // The intermediate elements that a token takes part in.
  [[nodiscard]] int32_t active_size() const {
    return intermediate_size * std::max(1, experts_per_token) + shared_size;
  }
  bool operator==(const FfnSpec&) const = default;
};

// A gated delta net, which keeps a state of fixed size in place of keys and values.
struct DeltaSpec : GatedDeltaShape {
  // Rows of its input matrices are ordered by key heads: each has its queries, keys, values and gates; and its b and a.
  bool qkvz_by_key_head = false;
  bool ba_by_key_head = false;
  bool has_rates =
      false;  // the checkpoint has them themselves; else the logarithms of their negatives

  // Outputs of the first product: queries, keys, values and output gates.
  [[nodiscard]] int64_t in_size() const { return num_channels() + value_size(); }
  bool operator==(const DeltaSpec&) const = default;
};

// One layer: residual += scale * post_norm(f(norm(residual))), with attention (or a gated delta net in its place) as f, and
// then with the feed-forward.
struct LayerSpec {
  AttentionSpec attention;
  DeltaSpec delta;  // without heads: attention
  FfnSpec ffn;
  bool pre_norms = true;        // else both read the residual stream itself
  bool post_norms = false;      // on both products before they are added to the residual stream
  float residual_scale = 1.0F;  // of both
  // Elements of an input of its own, a function of the token's id and embedding. Behind the feed-forward:
  // residual += post_norm(out(activation(gate residual) * input)). 0: none.
  int32_t layer_input_size = 0;
  bool layer_scalar = false;  // a factor of the residual stream behind the layer

  [[nodiscard]] bool has_state() const { return delta.num_value_heads > 0; }
  bool operator==(const LayerSpec&) const = default;
};

}  // namespace warprow
