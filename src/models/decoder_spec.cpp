// SPDX-License-Identifier: Apache-2.0
#include "models/decoder_spec.h"

#include "base/ids.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

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

std::string unmet_by_groups(const FfnSpec& ffn) {
  if (ffn.num_groups == 1) {
    return {};
  }
  const int32_t size = ffn.num_experts / ffn.num_groups;
  if (ffn.num_experts % ffn.num_groups != 0 || size < 2) {
    return fmt::format("{} experts in {} groups, equal ones of at least 2 are supported",
                       ffn.num_experts,
                       ffn.num_groups);
  }
  if (ffn.chosen_groups < 1 || ffn.chosen_groups > ffn.num_groups ||
      ffn.experts_per_token > ffn.chosen_groups * size) {
    return fmt::format("{} experts per token, of {} of {} groups with {} experts each",
                       ffn.experts_per_token,
                       ffn.chosen_groups,
                       ffn.num_groups,
                       size);
  }
  return {};
}

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
  if (std::string why = unmet_by_groups(ffn); !why.empty()) {
    return why;
  }
  constexpr int32_t kScaled = 32;  // inputs that share a scale
  if (spec.mxfp4_experts &&
      (spec.hidden_size % kScaled != 0 || ffn.intermediate_size % kScaled != 0)) {
    return fmt::format("experts in MXFP4 of sizes {} and {}, multiples of {} are supported",
                       spec.hidden_size,
                       ffn.intermediate_size,
                       kScaled);
  }
  if (spec.mlp_bias) {
    return "experts beside dense biases are not supported";
  }
  return {};
}

// Whether a layer can read the keys and values of another.
std::string unmet_by_source(const DecoderSpec& spec, size_t index) {
  const AttentionSpec& layer = spec.layers[index].attention;
  if (layer.has_own_kv()) {
    return {};
  }
  if (layer.kv_source < 0 || std::cmp_greater_equal(layer.kv_source, index)) {
    return fmt::format("keys and values of layer {}", layer.kv_source);
  }
  const AttentionSpec& source = spec.layers[static_cast<size_t>(layer.kv_source)].attention;
  const bool alike = source.has_own_kv() && source.num_heads == layer.num_heads &&
                     source.num_kv_heads == layer.num_kv_heads &&
                     source.head_dim == layer.head_dim && source.head_dim_v == layer.head_dim_v &&
                     source.window == layer.window;
  return alike ? std::string()
               : fmt::format("keys and values of layer {}, whose attention has another shape",
                             layer.kv_source);
}

// Whether the residual stream can be as the layer needs it.
std::string unmet_by_inputs(const DecoderSpec& spec, const LayerSpec& layer) {
  if (layer.layer_input_size != spec.layers.front().layer_input_size) {
    return "inputs of layers of different sizes";
  }
  if (layer.layer_input_size > 0 && !layer.post_norms) {
    return "an input of a layer without norms behind it";
  }
  const int64_t width = int64_t{layer.layer_input_size} * spec.num_layers;
  if (width > std::numeric_limits<int32_t>::max() / 4) {
    return fmt::format("inputs of all layers of {} elements", width);
  }
  if (layer.ffn.own_norms && (layer.ffn.shared_size == 0 || !layer.post_norms)) {
    return "experts with norms of their own, but none beside them";
  }
  return {};
}

constexpr int32_t kMaxDeltaSize = 1024;

std::string unmet_by_delta(const DeltaSpec& delta) {
  if (delta.num_key_heads < 1 || delta.num_value_heads % delta.num_key_heads != 0) {
    return fmt::format("gated delta net: {} value heads are no multiple of {} key heads",
                       delta.num_value_heads,
                       delta.num_key_heads);
  }
  if (delta.num_value_heads > kMaxDeltaSize || delta.key_dim > kMaxDeltaSize ||
      delta.value_dim > kMaxDeltaSize) {
    return fmt::format(
        "gated delta net: {} value heads of {} keys and {} values; at most {} of each are "
        "supported",
        delta.num_value_heads,
        delta.key_dim,
        delta.value_dim,
        kMaxDeltaSize);
  }
  if (delta.conv_len < 2 || delta.conv_len > kMaxConvLen) {
    return fmt::format("gated delta net: a convolution over {} tokens; 2 to {} are supported",
                       delta.conv_len,
                       kMaxConvLen);
  }
  return {};
}

// What an encoder's layer may not have.
std::string unmet_by_encoder(const LayerSpec& layer) {
  const AttentionSpec& attention = layer.attention;
  const bool plain = !layer.has_state() && !layer.ffn.has_experts() && !attention.qk_norm &&
                     !attention.wide_qk_norm && !attention.output_gate && !attention.sinks &&
                     !attention.causal && attention.soft_cap == 0.0F;
  return plain ? "" : "an encoder with more than attention to both sides and a feed-forward";
}

// Why a layer cannot be computed; empty if it can.
std::string unmet(const DecoderSpec& spec, size_t index) {
  const LayerSpec& layer = spec.layers[index];
  const AttentionSpec& attention = layer.attention;
  if (spec.encoder) {
    if (spec.vocab_size > kIdBits) {
      return fmt::format("a vocabulary of {} tokens of an encoder", spec.vocab_size);
    }
    if (std::string why = unmet_by_encoder(layer); !why.empty()) {
      return why;
    }
  } else if (!attention.causal || !layer.ffn.gated) {
    return attention.causal ? "a feed-forward without a gate" : "attention to both sides";
  }
  for (std::string why : {unmet_by_source(spec, index), unmet_by_inputs(spec, layer)}) {
    if (!why.empty()) {
      return why;
    }
  }
  if (layer.has_state()) {
    const std::string why = unmet_by_delta(layer.delta);
    return !why.empty()       ? why
           : !layer.pre_norms ? "a gated delta net without a norm in front"
                              : unmet_by_experts(spec, layer.ffn);
  }
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
  if (attention.output_gate && spec.qkv_bias) {
    return "attention with an output gate and biases is not supported";
  }
  if (attention.qk_norm && attention.wide_qk_norm) {
    return "norms over each head and over all heads";
  }
  if (!spec.encoder && !layer.pre_norms && (!layer.post_norms || layer.ffn.has_experts())) {
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
    if (const std::string why = unmet(spec, l); !why.empty()) {
      return fail(ErrorCode::kUnsupported, fmt::format("layer {}: {}", l, why));
    }
  }
  return {};
}

}  // namespace warprow
