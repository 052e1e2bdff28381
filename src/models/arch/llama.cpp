// SPDX-License-Identifier: Apache-2.0
#include "models/arch/arch.h"
#include "models/weight_names.h"

namespace warprow {

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
  }
  return {};
}

}  // namespace warprow
