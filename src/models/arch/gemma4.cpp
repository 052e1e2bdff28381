// SPDX-License-Identifier: Apache-2.0
#include "models/arch/arch.h"
#include "models/arch/gemma_layers.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

void set_gemma4_names(const ModelMetadata& metadata, DecoderSpec& spec) {
  DecoderWeightNames& names = spec.names;
  const std::string& model = metadata.weight_prefix();
  const std::string layer = model + "layers.{}.";
  names.attention_post_norm = layer + "post_attention_layernorm.weight";
  names.ffn_norm = layer + "pre_feedforward_layernorm.weight";
  names.ffn_post_norm = layer + "post_feedforward_layernorm.weight";
  names.layer_scalar = layer + "layer_scalar";
  names.layer_inputs = model + "embed_tokens_per_layer.weight";
  names.layer_inputs_product = model + "per_layer_model_projection.weight";
  names.layer_inputs_norm = model + "per_layer_projection_norm.weight";
  names.layer_input_gate = layer + "per_layer_input_gate.weight";
  names.layer_input_out = layer + "per_layer_projection.weight";
  names.layer_input_post_norm = layer + "post_per_layer_input_norm.weight";
  names.router = layer + "router.proj.weight";
  names.router_norm = layer + "router.scale";
  names.expert_scales = layer + "router.per_expert_scale";
  names.expert_gate.clear();
  names.experts_gate_up = layer + "experts.gate_up_proj";
  names.experts_gate = names.experts_gate_up;
  names.experts_up = names.experts_gate_up;
  names.experts_down = layer + "experts.down_proj";
  names.experts_norm = layer + "pre_feedforward_layernorm_2.weight";
  names.experts_post_norm = layer + "post_feedforward_layernorm_2.weight";
  names.shared_post_norm = layer + "post_feedforward_layernorm_1.weight";
  names.shared_gate = names.gate;
  names.shared_up = names.up;
  names.shared_down = names.down;
}

// Which layers see all earlier tokens. The last one always does.
Result<std::vector<bool>> read_gemma4_pattern(const ModelMetadata& metadata,
                                              const DecoderSpec& spec) {
  constexpr size_t kGlobalEvery = 6;
  auto types = metadata.layer_types();
  if (!types) {
    return tl::unexpected(types.error());
  }
  if (!types->empty() && types->size() != spec.layers.size()) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("config.json: layer_types has {} entries for {} layers",
                            types->size(),
                            spec.layers.size()));
  }
  std::vector<bool> global(spec.layers.size());
  for (size_t i = 0; i < global.size(); ++i) {
    global[i] = types->empty() ? (i + 1) % kGlobalEvery == 0 : (*types)[i] == "full_attention";
    if (!types->empty() && !global[i] && (*types)[i] != "sliding_attention") {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("layer type {} is not supported", (*types)[i]));
    }
  }
  global.back() = true;
  return global;
}

// Heads of the global layers, in the two spellings: for all of them, or each layer's own (transformers 5).
Result<void> read_heads(const ModelMetadata& metadata,
                        const std::vector<bool>& global,
                        bool values_are_keys,
                        DecoderSpec& spec) {
  const bool by_layer = metadata.has_json("per_layer_config");
  auto global_dim = metadata.count_or("global_head_dim", "", 512);
  auto global_heads = metadata.count_or("num_global_key_value_heads", "", 0);
  if (!global_dim || !global_heads) {
    return tl::unexpected(!global_dim ? global_dim.error() : global_heads.error());
  }
  for (size_t i = 0; i < global.size(); ++i) {
    AttentionSpec& attention = spec.layers[i].attention;
    const auto index = static_cast<int32_t>(i);
    const bool changed = global[i] && !by_layer;
    auto dim =
        metadata.layer_count_or(index, "head_dim", changed ? *global_dim : attention.head_dim);
    auto heads = metadata.layer_count_or(
        index,
        "num_key_value_heads",
        changed && values_are_keys && *global_heads > 0 ? *global_heads : attention.num_kv_heads);
    if (!dim || !heads) {
      return tl::unexpected(!dim ? dim.error() : heads.error());
    }
    attention.head_dim = *dim;
    attention.head_dim_v = *dim;
    attention.num_kv_heads = *heads;
  }
  return metadata.check_layer_keys({"head_dim", "num_key_value_heads"});
}

// A head's size decides the frequencies, so all layers of a type must agree.
Result<void> read_gemma4_ropes(const ModelMetadata& metadata,
                               const std::vector<bool>& global,
                               DecoderSpec& spec) {
  int32_t dims[2] = {};
  for (size_t i = 0; i < global.size(); ++i) {
    int32_t& dim = dims[global[i] ? kGlobalRope : kLocalRope];
    if (dim != 0 && dim != spec.layers[i].attention.head_dim) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("layer {}: head_dim {} beside {} of the same layer type",
                              i,
                              spec.layers[i].attention.head_dim,
                              dim));
    }
    dim = spec.layers[i].attention.head_dim;
    spec.layers[i].attention.rope = global[i] ? kGlobalRope : kLocalRope;
  }
  RopeSpec far;
  far.rot_dim = dims[kGlobalRope];
  far.theta = 1e6F;
  RopeSpec near;
  near.rot_dim = dims[kLocalRope];
  near.theta = 1e4F;
  if (!metadata.has_json("rope_parameters")) {
    far.scaling = RopeScaling::kProportional;
    far.num_rotated = far.rot_dim / 8;
  }
  auto read_far = metadata.rope_of("full_attention", far, far.rot_dim);
  auto read_near = metadata.rope_of("sliding_attention", near, std::max(near.rot_dim, 2));
  if (!read_far || !read_near) {
    return tl::unexpected(!read_far ? read_far.error() : read_near.error());
  }
  spec.ropes = {read_far->value_or(far)};
  if (near.rot_dim > 0) {
    spec.ropes.push_back(read_near->value_or(near));
  }
  return {};
}

// The last layers read the keys and values of the last earlier layer of their type.
Result<void> share_keys(const std::vector<bool>& global,
                        int32_t num_shared,
                        bool wide,
                        DecoderSpec& spec) {
  const int32_t first = spec.num_layers - num_shared;
  for (int32_t i = first; i < spec.num_layers; ++i) {
    LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    int32_t source = first - 1;
    while (source >= 0 && global[static_cast<size_t>(source)] != global[static_cast<size_t>(i)]) {
      --source;
    }
    if (source < 0) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("config.json: num_kv_shared_layers is {}, which leaves no layer of "
                              "the type of layer {}",
                              num_shared,
                              i));
    }
    layer.attention.kv_source = source;
    layer.ffn.intermediate_size *= wide ? 2 : 1;
  }
  return {};
}

Result<void> read_experts_beside(const ModelMetadata& metadata, DecoderSpec& spec) {
  auto count = metadata.require_count("num_experts", "");
  auto chosen = metadata.require_count("top_k_experts", "");
  auto size = metadata.require_count("moe_intermediate_size", "");
  for (const auto* value : {&count, &chosen, &size}) {
    if (!*value) {
      return tl::unexpected(value->error());
    }
  }
  for (LayerSpec& layer : spec.layers) {
    FfnSpec& ffn = layer.ffn;
    ffn.shared_size = ffn.intermediate_size;
    ffn.shared_gate = false;
    ffn.own_norms = true;
    ffn.num_experts = *count;
    ffn.experts_per_token = *chosen;
    ffn.intermediate_size = *size;
    ffn.normalise = true;
  }
  return {};
}

// "vision" is bidirectional for images alone.
Result<void> check_direction(const ModelMetadata& metadata) {
  auto direction = metadata.string_or("use_bidirectional_attention", "", "vision");
  if (direction && *direction != "vision") {
    return fail(ErrorCode::kUnsupported,
                fmt::format("use_bidirectional_attention {} is not supported", *direction));
  }
  return direction ? Result<void>() : tl::unexpected(direction.error());
}

Result<void> read_layers(const ModelMetadata& metadata, DecoderSpec& spec) {
  auto global = read_gemma4_pattern(metadata, spec);
  auto window = metadata.count_or("sliding_window", "", 512);
  auto values_are_keys = metadata.bool_or("attention_k_eq_v", false);
  auto inputs = metadata.number_or("hidden_size_per_layer_input", "", 256);
  if (!global || !window) {
    return tl::unexpected(!global ? global.error() : window.error());
  }
  if (!values_are_keys || !inputs) {
    return tl::unexpected(!values_are_keys ? values_are_keys.error() : inputs.error());
  }
  const bool no_inputs = metadata.names_json("hidden_size_per_layer_input") &&
                         !metadata.has_json("hidden_size_per_layer_input");
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    LayerSpec& layer = spec.layers[i];
    layer.post_norms = true;
    layer.layer_input_size = no_inputs ? 0 : *inputs;
    layer.layer_scalar = true;
    layer.ffn.activation = Activation::kGeluTanh;
    layer.attention.scale = 1.0F;
    layer.attention.qk_norm = true;
    layer.attention.v_norm = true;
    layer.attention.values_are_keys = *values_are_keys && (*global)[i];
    layer.attention.window = (*global)[i] ? 0 : *window;
  }
  if (auto heads = read_heads(metadata, *global, *values_are_keys, spec); !heads) {
    return heads;
  }
  if (auto ropes = read_gemma4_ropes(metadata, *global, spec); !ropes) {
    return ropes;
  }
  auto shared = metadata.number_or("num_kv_shared_layers", "", 0);
  auto wide = metadata.bool_or("use_double_wide_mlp", false);
  if (!shared || !wide) {
    return tl::unexpected(!shared ? shared.error() : wide.error());
  }
  if (*shared >= spec.num_layers) {
    return fail(
        ErrorCode::kCorrupt,
        fmt::format(
            "config.json: num_kv_shared_layers is {} of {} layers", *shared, spec.num_layers));
  }
  return share_keys(*global, *shared, *wide, spec);
}

}  // namespace

// Gemma 4's text models. Global and sliding layers have heads of their own, all have norms over each head of queries,
// keys and values, and a factor of the residual stream. The small ones share keys and values among the last layers and
// have inputs of layers; others have experts beside the feed-forward.
Result<void> make_gemma4(const ModelMetadata& metadata, DecoderSpec& spec) {
  spec.architecture = metadata.architecture();
  spec.embed_scale = std::sqrt(static_cast<float>(spec.hidden_size));
  set_gemma4_names(metadata, spec);
  if (auto causal = check_direction(metadata); !causal) {
    return causal;
  }
  auto bias = metadata.bool_or("attention_bias", false);
  auto tied = metadata.bool_or("tie_word_embeddings", true);
  auto cap = metadata.float_or("final_logit_softcapping", "", 0.0F);
  auto has_experts = metadata.bool_or("enable_moe_block", false);
  if (!bias || !tied) {
    return tl::unexpected(!bias ? bias.error() : tied.error());
  }
  if (!cap || !has_experts) {
    return tl::unexpected(!cap ? cap.error() : has_experts.error());
  }
  if (!(*cap >= 0.0F && std::isfinite(*cap))) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("model config: final_logit_softcapping is {}", *cap));
  }
  spec.qkv_bias = *bias;
  spec.o_bias = *bias;
  spec.tied_head = spec.tied_head || *tied;
  spec.logits_soft_cap = *cap;
  if (auto layers = read_layers(metadata, spec); !layers) {
    return layers;
  }
  return *has_experts ? read_experts_beside(metadata, spec) : Result<void>();
}

}  // namespace warprow
