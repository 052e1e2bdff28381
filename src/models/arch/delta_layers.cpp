// SPDX-License-Identifier: Apache-2.0
#include "models/arch/delta_layers.h"

#include "models/arch/expert_layers.h"
#include "models/arch/predictors.h"
#include "models/weight_names.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

struct DeltaField {
  int32_t GatedDeltaShape::* field;
  const char* key;
  const char* gguf_key;
  int32_t fallback;  // of config.json
};

constexpr DeltaField kFields[] = {
    {&GatedDeltaShape::num_key_heads, "linear_num_key_heads", "ssm.group_count", 16},
    {&GatedDeltaShape::num_value_heads, "linear_num_value_heads", "ssm.time_step_rank", 32},
    {&GatedDeltaShape::key_dim, "linear_key_head_dim", "ssm.state_size", 128},
    {&GatedDeltaShape::value_dim, "linear_value_head_dim", "ssm.inner_size", 128},
    {&GatedDeltaShape::conv_len, "linear_conv_kernel_dim", "ssm.conv_kernel", 4},
};

Result<DeltaSpec> read_delta(const ModelMetadata& metadata) {
  DeltaSpec delta;
  for (const DeltaField& field : kFields) {
    auto value = metadata.is_gguf() ? metadata.require_count(field.key, field.gguf_key)
                                    : metadata.count_or(field.key, field.gguf_key, field.fallback);
    if (!value) {
      return tl::unexpected(value.error());
    }
    delta.*field.field = *value;
  }
  if (!metadata.is_gguf()) {
    return delta;
  }
  if (delta.value_dim % delta.num_value_heads != 0) {  // inner_size is that of all heads
    return fail(
        ErrorCode::kCorrupt,
        fmt::format("model config: ssm.inner_size {} is no multiple of ssm.time_step_rank {}",
                    delta.value_dim,
                    delta.num_value_heads));
  }
  delta.value_dim /= delta.num_value_heads;
  return delta;
}

// By layer: linear_attention or full_attention.
Result<std::vector<std::string>> kinds_of_layers(const ModelMetadata& metadata,
                                                 const DecoderSpec& spec) {
  if (metadata.is_gguf()) {
    std::vector<std::string> by_tensors;
    for (int32_t l = 0; l < spec.num_layers; ++l) {
      const bool linear =
          metadata.checkpoint().find(layer_name(spec.names.delta_rate, l)) != nullptr;
      by_tensors.emplace_back(linear ? "linear_attention" : "full_attention");
    }
    return by_tensors;
  }
  auto types = metadata.layer_types();
  if (!types) {
    return types;
  }
  if (types->empty()) {
    auto interval = metadata.count_or("full_attention_interval", "", 4);
    if (!interval) {
      return tl::unexpected(interval.error());
    }
    for (int32_t l = 1; l <= spec.num_layers; ++l) {
      types->emplace_back(l % *interval == 0 ? "full_attention" : "linear_attention");
    }
  }
  if (types->size() != spec.layers.size()) {
    return fail(
        ErrorCode::kCorrupt,
        fmt::format(
            "config.json: {} layer_types for {} layers", types->size(), spec.layers.size()));
  }
  for (const std::string& type : *types) {
    if (type != "full_attention" && type != "linear_attention") {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("layer type {} is not supported (full_attention and "
                              "linear_attention are)",
                              type));
    }
  }
  return types;
}

}  // namespace

Result<void> read_delta_layers(const ModelMetadata& metadata, bool by_key_head, DecoderSpec& spec) {
  auto delta = read_delta(metadata);
  if (auto left_out = leave_out_predictors(metadata, spec); !left_out) {
    return left_out;
  }
  auto bias = metadata.bool_or("attention_bias", false);
  auto kinds = kinds_of_layers(metadata, spec);
  if (!delta || !bias || !kinds) {
    return tl::unexpected(!delta ? delta.error() : !bias ? bias.error() : kinds.error());
  }
  if (spec.layers.front().ffn.activation != Activation::kSilu) {
    return fail(ErrorCode::kUnsupported,
                "hidden_act of a model with gated delta nets is not silu, which is supported");
  }
  spec.qkv_bias = *bias;
  spec.o_bias = *bias;
  const bool gguf = metadata.is_gguf();
  spec.norm_offset = gguf ? 0.0F : 1.0F;
  delta->ba_by_key_head = by_key_head;
  delta->qkvz_by_key_head = by_key_head;
  if (gguf) {
    spec.names.ffn_norm = "blk.{}.post_attention_norm.weight";
    delta->qkvz_by_key_head =
        by_key_head && metadata.checkpoint().find(layer_name(spec.names.delta_qkvz, 0)) != nullptr;
    delta->has_rates = true;
    delta->tiled = !by_key_head && delta->num_value_heads > delta->num_key_heads;
  }
  for (size_t l = 0; l < spec.layers.size(); ++l) {
    LayerSpec& layer = spec.layers[l];
    layer.attention.qk_norm = true;
    layer.attention.output_gate = true;
    if ((*kinds)[l] == "linear_attention") {
      layer.delta = *delta;
    }
  }
  return {};
}

Result<void> read_hybrid_experts(const ModelMetadata& metadata, DecoderSpec& spec) {
  auto shared = metadata.require_count("shared_expert_intermediate_size",
                                       "expert_shared_feed_forward_length");
  auto normalised = metadata.bool_or("norm_topk_prob", true);
  if (!shared || !normalised) {
    return tl::unexpected(!shared ? shared.error() : normalised.error());
  }
  if (auto experts = read_qwen_experts(metadata, true, spec); !experts) {
    return experts;
  }
  for (LayerSpec& layer : spec.layers) {
    if (layer.ffn.has_experts()) {
      layer.ffn.normalise = *normalised;
      layer.ffn.shared_size = *shared;
    }
  }
  return {};
}

}  // namespace warprow
