// SPDX-License-Identifier: Apache-2.0
#include "models/arch/gemma_layers.h"

#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr const char* kSlidingGemma = "sliding_attention";
constexpr const char* kFull = "full_attention";

void set_gemma_names(const ModelMetadata& metadata, DecoderSpec& spec) {
  if (metadata.is_gguf()) {
    spec.names.attention_post_norm = "blk.{}.post_attention_norm.weight";
    spec.names.ffn_post_norm = "blk.{}.post_ffw_norm.weight";
    return;
  }
  const std::string layer = metadata.weight_prefix() + "layers.{}.";
  spec.names.attention_post_norm = layer + "post_attention_layernorm.weight";
  spec.names.ffn_norm = layer + "pre_feedforward_layernorm.weight";
  spec.names.ffn_post_norm = layer + "post_feedforward_layernorm.weight";
}

Result<void> refuse_options(const ModelMetadata& metadata) {
  for (const char* key : {"attention_bias", "use_bidirectional_attention"}) {
    auto set = metadata.bool_or(key, false);
    if (!set || *set) {
      return set ? fail(ErrorCode::kUnsupported, fmt::format("{} is not supported", key))
                 : tl::unexpected(set.error());
    }
  }
  return {};
}

// Null is no cap; a missing key is the generation's.
Result<float> read_cap(const ModelMetadata& metadata, const char* key, float missing) {
  auto cap = metadata.float_or(key, key, metadata.names_json(key) ? 0.0F : missing);
  if (cap && !(*cap >= 0.0F && std::isfinite(*cap))) {
    return fail(ErrorCode::kCorrupt, fmt::format("model config: {} is {}", key, *cap));
  }
  return cap;
}

// The factor of query times key: config.json has it, GGUF does not.
Result<float> read_scale(const ModelMetadata& metadata,
                         const GemmaDefaults& defaults,
                         const DecoderSpec& spec) {
  const AttentionSpec& attention = spec.layers.front().attention;
  if (!metadata.is_gguf()) {
    auto scalar = metadata.require_count("query_pre_attn_scalar", "");
    return scalar ? Result<float>(1.0F / std::sqrt(static_cast<float>(*scalar)))
                  : tl::unexpected(scalar.error());
  }
  const int32_t dims = spec.num_layers == defaults.wide_model_layers
                           ? spec.hidden_size / attention.num_heads
                           : attention.head_dim;
  return 1.0F / std::sqrt(static_cast<float>(dims));
}

// Which layers are global: layer_types, or the last of every few.
Result<std::vector<bool>> read_pattern(const ModelMetadata& metadata,
                                       const GemmaDefaults& defaults,
                                       const DecoderSpec& spec) {
  auto every = metadata.count_or("sliding_window_pattern", "", defaults.global_every);
  auto types = metadata.layer_types();
  if (!every || !types) {
    return tl::unexpected(!every ? every.error() : types.error());
  }
  if (!types->empty() && types->size() != spec.layers.size()) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("config.json: layer_types has {} entries for {} layers",
                            types->size(),
                            spec.layers.size()));
  }
  std::vector<bool> global(spec.layers.size());
  for (size_t i = 0; i < global.size(); ++i) {
    global[i] = types->empty() ? (i + 1) % static_cast<size_t>(*every) == 0 : (*types)[i] == kFull;
    if (!types->empty() && !global[i] && (*types)[i] != kSlidingGemma) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("layer type {} is not supported", (*types)[i]));
    }
  }
  return global;
}

}  // namespace

Result<void> read_gemma_layers(const ModelMetadata& metadata,
                               const GemmaDefaults& defaults,
                               DecoderSpec& spec) {
  spec.embed_scale = std::sqrt(static_cast<float>(spec.hidden_size));
  spec.norm_offset = metadata.is_gguf() ? 0.0F : 1.0F;
  set_gemma_names(metadata, spec);
  if (auto refused = refuse_options(metadata); !refused) {
    return refused;
  }
  auto head_dim = metadata.require_count("head_dim", "attention.key_length");
  auto tied = metadata.bool_or("tie_word_embeddings", !metadata.is_gguf());
  auto window = metadata.require_count("sliding_window", "attention.sliding_window");
  if (!head_dim || !tied || !window) {
    return tl::unexpected(!head_dim ? head_dim.error() : !tied ? tied.error() : window.error());
  }
  auto attention_cap = read_cap(metadata, "attn_logit_softcapping", defaults.attention_cap);
  auto logits_cap = read_cap(metadata, "final_logit_softcapping", defaults.logits_cap);
  auto scale = read_scale(metadata, defaults, spec);
  for (const auto* value : {&attention_cap, &logits_cap, &scale}) {
    if (!*value) {
      return tl::unexpected(value->error());
    }
  }
  auto global = read_pattern(metadata, defaults, spec);
  if (!global) {
    return tl::unexpected(global.error());
  }
  spec.tied_head = spec.tied_head || *tied;
  spec.logits_soft_cap = *logits_cap;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    LayerSpec& layer = spec.layers[i];
    layer.post_norms = true;
    layer.ffn.activation = Activation::kGeluTanh;
    layer.attention.scale = *scale;
    layer.attention.soft_cap = *attention_cap;
    layer.attention.window = (*global)[i] ? 0 : *window;
  }
  return {};
}

}  // namespace warprow
