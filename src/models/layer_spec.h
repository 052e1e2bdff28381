// SPDX-License-Identifier: Apache-2.0
#pragma once

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

// The gated feed-forward of one layer: down(activation(gate x) * up x).
struct FfnSpec {
  int32_t intermediate_size = 0;
  Activation activation = Activation::kSilu;
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
