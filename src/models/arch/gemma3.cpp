// SPDX-License-Identifier: Apache-2.0
#include "models/arch/arch.h"

#include <cmath>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr const char* kSliding = "sliding_attention";
constexpr const char* kFull = "full_attention";

enum Rope : int32_t { kGlobal, kLocal };

// Refuses options of the family that the forward does not support.
Result<void> refuse_options(const ModelMetadata& metadata) {
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    if (metadata.has_json(key)) {
      return fail(ErrorCode::kUnsupported, fmt::format("{} is not supported", key));
    }
  }
  for (const char* key : {"attention_bias", "use_bidirectional_attention"}) {
    auto set = metadata.bool_or(key, false);
    if (!set || *set) {
      return set ? fail(ErrorCode::kUnsupported, fmt::format("{} is not supported", key))
                 : tl::unexpected(set.error());
    }
  }
  return {};
}

// Global layers have a long theta, possibly with rope scaling; sliding layers have a short one.
Result<void> read_ropes(const ModelMetadata& metadata, DecoderSpec& spec) {
  RopeSpec global = spec.ropes.front();
  RopeSpec local;
  local.rot_dim = global.rot_dim;
  auto local_theta = metadata.float_or("rope_local_base_freq", "", 10000.0F);
  auto global_of = metadata.rope_of(kFull, global);
  auto local_of = metadata.rope_of(kSliding, local);
  if (!local_theta || !global_of || !local_of) {
    return tl::unexpected(!local_theta ? local_theta.error()
                          : !global_of ? global_of.error()
                                       : local_of.error());
  }
  local.theta = *local_theta;
  if (!*global_of && !metadata.has_json("rope_theta")) {
    return fail(ErrorCode::kCorrupt, "config.json: rope_theta is missing");
  }
  spec.ropes = {global_of->value_or(global), local_of->value_or(local)};
  return {};
}

// The last of every few layers is global; layer_types or sliding_window_pattern gives the pattern.
Result<void> read_layers(const ModelMetadata& metadata, DecoderSpec& spec) {
  auto window = metadata.require_count("sliding_window", "");
  auto pattern = metadata.count_or("sliding_window_pattern", "", 6);
  auto types = metadata.layer_types();
  auto scalar = metadata.require_count("query_pre_attn_scalar", "");
  if (!window || !pattern || !types || !scalar) {
    return tl::unexpected(!window    ? window.error()
                          : !pattern ? pattern.error()
                          : !types   ? types.error()
                                     : scalar.error());
  }
  if (!types->empty() && types->size() != spec.layers.size()) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("config.json: layer_types has {} entries for {} layers",
                            types->size(),
                            spec.layers.size()));
  }
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const bool global =
        types->empty() ? (i + 1) % static_cast<size_t>(*pattern) == 0 : (*types)[i] == kFull;
    if (!types->empty() && !global && (*types)[i] != kSliding) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("layer type {} is not supported", (*types)[i]));
    }
    LayerSpec& layer = spec.layers[i];
    layer.post_norms = true;
    layer.attention.qk_norm = true;
    layer.attention.scale = 1.0F / std::sqrt(static_cast<float>(*scalar));
    layer.attention.window = global ? 0 : *window;
    layer.attention.rope = global ? kGlobal : kLocal;
  }
  return {};
}

}  // namespace

// Gemma 3's text models: norms on both sides of attention and feed-forward, stored as differences to
// one, tanh GELU, scaled embeddings, sliding layers with a rope of their own.
Result<void> make_gemma3(const ModelMetadata& metadata, DecoderSpec& spec) {
  spec.architecture = "Gemma3ForCausalLM";
  spec.embed_scale = std::sqrt(static_cast<float>(spec.hidden_size));
  spec.norm_offset = 1.0F;
  const std::string layer = "model.layers.{}.";
  spec.names.attention_post_norm = layer + "post_attention_layernorm.weight";
  spec.names.ffn_norm = layer + "pre_feedforward_layernorm.weight";
  spec.names.ffn_post_norm = layer + "post_feedforward_layernorm.weight";
  auto head_dim = metadata.require_count("head_dim", "");
  auto tied = metadata.bool_or("tie_word_embeddings", true);
  if (!head_dim || !tied) {
    return tl::unexpected(!head_dim ? head_dim.error() : tied.error());
  }
  spec.tied_head = spec.tied_head || *tied;
  if (auto refused = refuse_options(metadata); !refused) {
    return refused;
  }
  if (auto ropes = read_ropes(metadata, spec); !ropes) {
    return ropes;
  }
  return read_layers(metadata, spec);
}

}  // namespace warprow
