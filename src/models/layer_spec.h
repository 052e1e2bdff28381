// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/experts/route_experts.h"

#include <algorithm>
#include <cstdint>

namespace warprow {

inline constexpr int32_t kNoRope = -1;

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
  bool sinks = false;      // a logit without a value for each head
  bool qk_norm = false;    // RMS norm over each head of Q and K before rope
  // RMS norm over all heads of Q together, and over all of K, before rope.
  bool wide_qk_norm = false;

  [[nodiscard]] int32_t q_size() const { return num_heads * head_dim; }
  [[nodiscard]] int32_t k_size() const { return num_kv_heads * head_dim; }
  [[nodiscard]] int32_t v_size() const { return num_kv_heads * head_dim_v; }
  [[nodiscard]] int32_t qkv_size() const { return q_size() + k_size() + v_size(); }
  [[nodiscard]] int32_t out_size() const { return num_heads * head_dim_v; }
};

// Attention with rope and no other option, with scale 1 / sqrt(head size).
AttentionSpec plain_attention(int32_t num_heads, int32_t num_kv_heads, int32_t head_dim);

enum class Activation : uint8_t { kSilu, kGeluTanh };

// The gated feed-forward of one layer: down(activation(gate x) * up x). With experts, a router chooses some of them for
// each token, and their results are summed by its weights.
struct FfnSpec {
  int32_t intermediate_size = 0;  // with experts: of each
  Activation activation = Activation::kSilu;
  int32_t num_experts = 0;        // 0: one feed-forward that all tokens take
  int32_t experts_per_token = 0;  // with experts
  RouterScores scores = RouterScores::kSoftmax;
  bool normalise = false;      // the weights of a token's experts to a sum of 1
  bool expert_biases = false;  // of the router and of each expert's matrices
  float gate_limit =
      0.0F;  // with experts: gpt-oss's clamped SwiGLU (kernels/experts/expert_linear.h); 0: none
  int32_t shared_size =
      0;  // with experts: of one more, which all tokens take, times a sigmoid gate; 0: none

  [[nodiscard]] bool has_experts() const { return num_experts > 0; }
  // The intermediate elements that a token takes part in.
  [[nodiscard]] int32_t active_size() const {
    return intermediate_size * std::max(1, experts_per_token) + shared_size;
  }
};

// One layer: for attention, then for the feed-forward, residual += scale * post_norm(f(norm(residual))).
struct LayerSpec {
  AttentionSpec attention;
  FfnSpec ffn;
  bool pre_norms = true;        // else both read the residual stream itself
  bool post_norms = false;      // on both products before they are added to the residual stream
  float residual_scale = 1.0F;  // of both
};

}  // namespace warprow
