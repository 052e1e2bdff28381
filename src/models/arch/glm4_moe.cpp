// SPDX-License-Identifier: Apache-2.0
#include "models/arch/arch.h"
#include "models/arch/expert_layers.h"
#include "models/arch/predictors.h"
#include "models/rope_metadata.h"

#include <cmath>
#include <string>

#include <fmt/format.h>

namespace warprow {
namespace {

// GGUF's name of sigmoid scores.
constexpr int32_t kSigmoidInGguf = 2;

void set_names(const ModelMetadata& metadata, DecoderSpec& spec) {
  DecoderWeightNames& names = spec.names;
  if (metadata.is_gguf()) {
    names.ffn_norm = "blk.{}.post_attention_norm.weight";
    names.choice_bias = "blk.{}.exp_probs_b.bias";
    return;
  }
  const std::string mlp = metadata.weight_prefix() + "layers.{}.mlp.";
  names.choice_bias = mlp + "gate.e_score_correction_bias";
  names.shared_gate = mlp + "shared_experts.gate_proj.weight";
  names.shared_up = mlp + "shared_experts.up_proj.weight";
  names.shared_down = mlp + "shared_experts.down_proj.weight";
}

// GGUF has tensors in place of the two flags.
Result<void> read_attention(const ModelMetadata& metadata, DecoderSpec& spec) {
  auto bias = metadata.bool_or("attention_bias", false);
  auto head_norms = metadata.bool_or("use_qk_norm", false);
  if (!bias || !head_norms) {
    return tl::unexpected(!bias ? bias.error() : head_norms.error());
  }
  const auto in_gguf = [&](const char* tensor) {
    return metadata.checkpoint().find(tensor) != nullptr;
  };
  const bool gguf = metadata.is_gguf();
  spec.qkv_bias = gguf ? in_gguf("blk.0.attn_q.bias") : *bias;
  for (LayerSpec& layer : spec.layers) {
    layer.attention.qk_norm = gguf ? in_gguf("blk.0.attn_q_norm.weight") : *head_norms;
  }
  // Half of a head rotates where neither form of the rope says how much.
  if (!gguf && !metadata.has_json("partial_rotary_factor") &&
      !metadata.has_json("rope_parameters")) {
    auto dims = rotated_dims(spec.layers.front().attention.head_dim, 0.5F);
    if (!dims) {
      return tl::unexpected(dims.error());
    }
    spec.ropes.front().rot_dim = *dims;
  }
  return {};
}

Result<FfnSpec> read_choice(const ModelMetadata& metadata, FfnSpec experts) {
  auto groups = metadata.count_or("n_group", "expert_group_count", 1);
  auto chosen = metadata.count_or("topk_group", "expert_group_used_count", 1);
  auto scale = metadata.float_or("routed_scaling_factor", "expert_weights_scale", 1.0F);
  auto normalise = metadata.flag_or("norm_topk_prob", "expert_weights_norm", !metadata.is_gguf());
  auto scores = metadata.count_or("", "expert_gating_func", kSigmoidInGguf);
  if (!groups || !chosen || !scale) {
    return tl::unexpected(!groups ? groups.error() : !chosen ? chosen.error() : scale.error());
  }
  if (!normalise || !scores) {
    return tl::unexpected(!normalise ? normalise.error() : scores.error());
  }
  if (*scores != kSigmoidInGguf) {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format(
            "expert_gating_func {} is not supported ({}, sigmoid, is)", *scores, kSigmoidInGguf));
  }
  if (!(*scale > 0.0F && std::isfinite(*scale))) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("model config: routed_scaling_factor is {}", *scale));
  }
  experts.scores = RouterScores::kSigmoid;
  experts.choice_bias = true;
  experts.num_groups = *groups;
  experts.chosen_groups = *chosen;
  experts.weights_scale = *scale;
  experts.normalise = *normalise;
  return experts;
}

Result<FfnSpec> read_sizes(const ModelMetadata& metadata, FfnSpec dense) {
  const char* count_key =
      metadata.has_json("n_routed_experts") ? "n_routed_experts" : "num_local_experts";
  auto count = metadata.require_count(count_key, "expert_count");
  auto chosen = metadata.require_count("num_experts_per_tok", "expert_used_count");
  auto size = metadata.require_count("moe_intermediate_size", "expert_feed_forward_length");
  auto shared = metadata.number_or("n_shared_experts", "expert_shared_count", 1);
  for (const auto* value : {&count, &chosen, &size, &shared}) {
    if (!*value) {
      return tl::unexpected(value->error());
    }
  }
  if (*shared > (1 << 28) / *size) {
    return fail(ErrorCode::kCorrupt, fmt::format("model config: n_shared_experts is {}", *shared));
  }
  dense.num_experts = *count;
  dense.experts_per_token = *chosen;
  dense.intermediate_size = *size;
  dense.shared_size = *shared * *size;
  dense.shared_gate = false;
  return dense;
}

}  // namespace

// GLM-4-MoE (GLM-4.5, 4.6 and 4.7): a partial rope of halves, perhaps head norms, and behind the first layers experts
// that are chosen by the sigmoids of the router's logits, beside one that all tokens take.
Result<void> make_glm4_moe(const ModelMetadata& metadata, DecoderSpec& spec) {
  spec.architecture = "Glm4MoeForCausalLM";
  set_names(metadata, spec);
  if (auto layers = leave_out_predictors(metadata, spec); !layers) {
    return layers;
  }
  if (auto attention = read_attention(metadata, spec); !attention) {
    return attention;
  }
  auto sizes = read_sizes(metadata, spec.layers.front().ffn);
  auto dense_layers = metadata.number_or(
      "first_k_dense_replace", "leading_dense_block_count", metadata.is_gguf() ? 0 : 1);
  if (!sizes || !dense_layers) {
    return tl::unexpected(!sizes ? sizes.error() : dense_layers.error());
  }
  auto experts = read_choice(metadata, *sizes);
  if (!experts) {
    return tl::unexpected(experts.error());
  }
  for (int32_t i = *dense_layers; i < spec.num_layers; ++i) {
    spec.layers[static_cast<size_t>(i)].ffn = *experts;
  }
  return {};
}

}  // namespace warprow
