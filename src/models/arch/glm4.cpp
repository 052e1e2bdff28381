// SPDX-License-Identifier: Apache-2.0
#include "models/arch/arch.h"

#include <string>

namespace warprow {
namespace {

// Biases on Q, K and V, gate and up in one tensor, a partial rope that rotates neighbouring elements.
Result<void> read_glm(const ModelMetadata& metadata, DecoderSpec& spec) {
  auto bias = metadata.bool_or("attention_bias", true);
  if (!bias) {
    return tl::unexpected(bias.error());
  }
  const bool gguf = metadata.is_gguf();
  spec.qkv_bias = gguf ? metadata.checkpoint().find("blk.0.attn_q.bias") != nullptr : *bias;
  spec.names.gate_up = gguf ? "blk.{}.ffn_up.weight" : "model.layers.{}.mlp.gate_up_proj.weight";
  spec.ropes.front().interleaved = true;
  return {};
}

}  // namespace

// GLM-4 of 2024, which its config.json calls GLM.
Result<void> make_glm(const ModelMetadata& metadata, DecoderSpec& spec) {
  spec.architecture = "GlmForCausalLM";
  return read_glm(metadata, spec);
}

// GLM-4 of 2025: the same with norms behind attention and feed-forward.
Result<void> make_glm4(const ModelMetadata& metadata, DecoderSpec& spec) {
  spec.architecture = "Glm4ForCausalLM";
  const bool gguf = metadata.is_gguf();
  spec.names.attention_post_norm = gguf ? "blk.{}.post_attention_norm.weight"
                                        : "model.layers.{}.post_self_attn_layernorm.weight";
  spec.names.ffn_post_norm =
      gguf ? "blk.{}.post_ffw_norm.weight" : "model.layers.{}.post_mlp_layernorm.weight";
  for (LayerSpec& layer : spec.layers) {
    layer.post_norms = true;
  }
  return read_glm(metadata, spec);
}

}  // namespace warprow
