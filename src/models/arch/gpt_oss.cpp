// SPDX-License-Identifier: Apache-2.0
#include "models/arch/arch.h"
#include "models/arch/expert_layers.h"

#include <string>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

// layer_types, or sliding and full attention in turn.
Result<void> read_gpt_oss_windows(const ModelMetadata& metadata, DecoderSpec& spec) {
  auto window = metadata.count_or("sliding_window", "attention.sliding_window", 128);
  auto types = metadata.layer_types();
  if (!window || !types) {
    return tl::unexpected(!window ? window.error() : types.error());
  }
  if (!types->empty() && types->size() != spec.layers.size()) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("config.json: layer_types has {} entries for {} layers",
                            types->size(),
                            spec.layers.size()));
  }
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const std::string type = !types->empty() ? (*types)[i]
                             : i % 2 == 0    ? "sliding_attention"
                                             : "full_attention";
    if (type != "sliding_attention" && type != "full_attention") {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("config.json: layer_types has {}, which is not supported "
                              "(sliding_attention and full_attention are)",
                              type));
    }
    spec.layers[i].attention.window = type == "sliding_attention" ? *window : 0;
  }
  return {};
}

void name_tensors(const ModelMetadata& metadata, DecoderSpec& spec) {
  DecoderWeightNames& names = spec.names;
  names.expert_gate = names.expert_up = names.expert_down = "";
  if (metadata.is_gguf()) {
    const std::string layer = "blk.{}.";
    names.sinks = layer + "attn_sinks.weight";
    names.ffn_norm = layer + "post_attention_norm.weight";
    names.experts_gate_bias = layer + "ffn_gate_exps.bias";
    names.experts_up_bias = layer + "ffn_up_exps.bias";
    names.experts_down_bias = layer + "ffn_down_exps.bias";
    return;
  }
  const std::string layer = "model.layers.{}.";
  names.sinks = layer + "self_attn.sinks";
  names.router = layer + "mlp.router.weight";
  names.experts_gate_up_bias = layer + "mlp.experts.gate_up_proj_bias";
  names.experts_down_bias = layer + "mlp.experts.down_proj_bias";
  spec.alternating_gate_up = true;
  spec.mxfp4_experts = metadata.checkpoint().has_mxfp4_experts();
  spec.transposed_experts = !spec.mxfp4_experts;
}

}  // namespace

// gpt-oss: experts with biases and a clamped SwiGLU, attention with sinks, every other layer with a window.
Result<void> make_gpt_oss(const ModelMetadata& metadata, DecoderSpec& spec) {
  auto bias = metadata.bool_or("attention_bias", true);
  auto limit = metadata.float_or("swiglu_limit", "", 7.0F);
  auto experts = read_experts(metadata, spec.layers.front().ffn);
  if (!bias || !limit || !experts) {
    return tl::unexpected(!bias ? bias.error() : !limit ? limit.error() : experts.error());
  }
  if (!(*limit > 0.0F)) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("config.json: swiglu_limit is {}, expected a number above 0", *limit));
  }
  spec.architecture = "GptOssForCausalLM";
  spec.qkv_bias = *bias;
  spec.o_bias = *bias;
  experts->scores = RouterScores::kSoftmaxOfChosen;
  experts->expert_biases = true;
  experts->gate_limit = *limit;
  for (LayerSpec& layer : spec.layers) {
    layer.attention.sinks = true;
    layer.ffn = *experts;
  }
  if (metadata.is_gguf()) {
    for (RopeSpec& rope : spec.ropes) {
      rope.truncate = false;  // its GGUF files do not say
    }
  }
  name_tensors(metadata, spec);
  return read_gpt_oss_windows(metadata, spec);
}

}  // namespace warprow
