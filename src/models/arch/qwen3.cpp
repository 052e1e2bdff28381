// SPDX-License-Identifier: Apache-2.0
#include "models/arch/arch.h"
#include "models/arch/layer_windows.h"

namespace warprow {

// Qwen3: no biases, RMS norm on each head of Q and K.
Result<void> make_qwen3(const ModelMetadata& metadata, DecoderSpec& spec) {
  auto attention_bias = metadata.bool_or("attention_bias", false);
  if (!attention_bias) {
    return tl::unexpected(attention_bias.error());
  }
  spec.architecture = "Qwen3ForCausalLM";
  for (LayerSpec& layer : spec.layers) {
    layer.attention.qk_norm = true;
  }
  spec.qkv_bias = *attention_bias;
  spec.o_bias = *attention_bias;
  return read_layer_windows(metadata, spec);
}

}  // namespace warprow
