// SPDX-License-Identifier: Apache-2.0
#include "models/decoder_spec.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include <fmt/format.h>

namespace warprow {

AttentionSpec plain_attention(int32_t num_heads, int32_t num_kv_heads, int32_t head_dim) {
  AttentionSpec out;
  out.num_heads = num_heads;
  out.num_kv_heads = num_kv_heads;
  out.head_dim = head_dim;
  out.head_dim_v = head_dim;
  out.scale = 1.0F / std::sqrt(static_cast<float>(head_dim));
  return out;
}

void set_uniform_layers(DecoderSpec& spec, const LayerSpec& layer) {
  spec.layers.assign(static_cast<size_t>(spec.num_layers), layer);
}

void set_longest_sequence(DecoderSpec& spec, int32_t max_len) {
  for (RopeSpec& rope : spec.ropes) {
    rope.max_len = max_len;
  }
}

namespace {

// Limits of kernels/experts.
constexpr int32_t kMaxExperts = 1024;
constexpr int32_t kMaxExpertsPerToken = 32;

std::string unmet_by_experts(const DecoderSpec& spec, const FfnSpec& ffn) {
  if (!ffn.has_experts()) {
    return {};
  }
  if (ffn.num_experts > kMaxExperts) {
    return fmt::format("{} experts, at most {} are supported", ffn.num_experts, kMaxExperts);
  }
  const int32_t most = std::min(kMaxExpertsPerToken, ffn.num_experts);
  if (ffn.experts_per_token < 1 || ffn.experts_per_token > most) {
    return fmt::format("{} experts per token, 1 to {} of {} are supported",
                       ffn.experts_per_token,
                       most,
                       ffn.num_experts);
  }
  const int64_t rows = int64_t{ffn.num_experts} *
                       std::max(int64_t{2} * ffn.intermediate_size, int64_t{spec.hidden_size});
  if (rows > std::numeric_limits<int32_t>::max()) {
    return fmt::format(
        "the {} experts have matrices of {} rows together, less than 2^31 are "
        "supported",
        ffn.num_experts,
        rows);
  }
  constexpr int32_t kScaled = 32;  // inputs that share a scale
  if (spec.mxfp4_experts &&
      (spec.hidden_size % kScaled != 0 || ffn.intermediate_size % kScaled != 0)) {
    return fmt::format("experts in MXFP4 of sizes {} and {}, multiples of {} are supported",
                       spec.hidden_size,
                       ffn.intermediate_size,
                       kScaled);
  }
  if (ffn.activation != Activation::kSilu) {
    return "experts with another activation than silu are not supported";
  }
  if (spec.mlp_bias) {
    return "experts beside dense biases are not supported";
  }
  return {};
}

// Why a layer cannot be computed; empty if it can.
std::string unmet(const DecoderSpec& spec, const LayerSpec& layer) {
  const AttentionSpec& attention = layer.attention;
  if (attention.num_kv_heads < 1 || attention.num_heads % attention.num_kv_heads != 0) {
    return fmt::format("{} attention heads are no multiple of {} key-value heads",
                       attention.num_heads,
                       attention.num_kv_heads);
  }
  if (attention.head_dim < 8 || attention.head_dim % 8 != 0) {
    return fmt::format("head size {} is not a multiple of 8", attention.head_dim);
  }
  if (attention.head_dim_v != attention.head_dim) {
    return fmt::format("head sizes {} of keys and {} of values are not equal",
                       attention.head_dim,
                       attention.head_dim_v);
  }
  if (attention.qk_norm && attention.wide_qk_norm) {
    return "norms over each head and over all heads";
  }
  if (!layer.pre_norms && (!layer.post_norms || layer.ffn.has_experts())) {
    return layer.post_norms ? "experts without a norm in front" : "no norms";
  }
  if (std::string why = unmet_by_experts(spec, layer.ffn); !why.empty()) {
    return why;
  }
  if (attention.rope == kNoRope) {
    return {};
  }
  if (attention.rope < 0 || attention.rope >= static_cast<int32_t>(spec.ropes.size())) {
    return fmt::format("rope {} of {}", attention.rope, spec.ropes.size());
  }
  const int32_t rot_dim = spec.ropes[static_cast<size_t>(attention.rope)].rot_dim;
  if (rot_dim > attention.head_dim) {
    return fmt::format("rope rotates {} of {} elements of a head", rot_dim, attention.head_dim);
  }
  return {};
}

}  // namespace

Result<void> check_decoder_spec(const DecoderSpec& spec) {
  for (size_t l = 0; l < spec.layers.size(); ++l) {
    if (const std::string why = unmet(spec, spec.layers[l]); !why.empty()) {
      return fail(ErrorCode::kUnsupported, fmt::format("layer {}: {}", l, why));
    }
  }
  return {};
}

}  // namespace warprow
