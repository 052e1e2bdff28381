// SPDX-License-Identifier: Apache-2.0
#include "models/arch/arch.h"
#include "models/arch/expert_layers.h"
#include "models/weight_names.h"

namespace warprow {

namespace {

// The experts of Mixtral, whose GGUF files have this architecture's name.
Result<void> read_gguf_experts(const ModelMetadata& metadata, DecoderSpec& spec) {
  auto count = metadata.count_or("", "expert_count", 0);
  if (!count || *count == 0) {
    return count ? Result<void>() : tl::unexpected(count.error());
  }
  auto experts = read_experts(metadata, spec.layers.front().ffn);
  if (!experts) {
    return tl::unexpected(experts.error());
  }
  experts->normalise = true;
  for (LayerSpec& layer : spec.layers) {
    layer.ffn = *experts;
  }
  return {};
}

}  // namespace

// Llama (Touvron et al.), also SmolLM2 and every checkpoint with this architecture name.
Result<void> make_llama(const ModelMetadata& metadata, DecoderSpec& spec) {
  auto attention_bias = metadata.bool_or("attention_bias", false);
  auto mlp_bias = metadata.bool_or("mlp_bias", false);
  if (!attention_bias || !mlp_bias) {
    return tl::unexpected(!attention_bias ? attention_bias.error() : mlp_bias.error());
  }
  spec.architecture = "LlamaForCausalLM";
  spec.qkv_bias = *attention_bias;
  spec.o_bias = *attention_bias;
  spec.mlp_bias = *mlp_bias;
  if (metadata.is_gguf()) {
    spec.permuted_qk = true;
    spec.qkv_bias = metadata.checkpoint().find(bias_name(layer_name(spec.names.q, 0))) != nullptr;
    spec.o_bias = metadata.checkpoint().find(bias_name(layer_name(spec.names.o, 0))) != nullptr;
    return read_gguf_experts(metadata, spec);
  }
  return {};
}

}  // namespace warprow
