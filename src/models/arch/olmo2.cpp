// SPDX-License-Identifier: Apache-2.0
#include "models/arch/arch.h"

namespace warprow {

// OLMo 2: norms behind attention and feed-forward only, and over all heads of Q and of K.
Result<void> make_olmo2(const ModelMetadata& metadata, DecoderSpec& spec) {
  auto bias = metadata.bool_or("attention_bias", false);
  if (!bias) {
    return tl::unexpected(bias.error());
  }
  spec.architecture = "Olmo2ForCausalLM";
  spec.qkv_bias = *bias;
  spec.o_bias = *bias;
  const bool gguf = metadata.is_gguf();
  spec.names.attention_post_norm = gguf ? "blk.{}.post_attention_norm.weight"
                                        : "model.layers.{}.post_attention_layernorm.weight";
  spec.names.ffn_post_norm =
      gguf ? "blk.{}.post_ffw_norm.weight" : "model.layers.{}.post_feedforward_layernorm.weight";
  for (LayerSpec& layer : spec.layers) {
    layer.pre_norms = false;
    layer.post_norms = true;
    layer.attention.wide_qk_norm = true;
  }
  return {};
}

}  // namespace warprow
