// SPDX-License-Identifier: Apache-2.0
#include "models/arch/arch.h"

namespace warprow {

// Phi-3 and Phi-4: Llama with Q, K and V in one tensor, and gate and up in one; possibly a window in every layer, a
// partial rope, a long rope.
Result<void> make_phi3(const ModelMetadata& metadata, DecoderSpec& spec) {
  auto window = metadata.count_or("sliding_window", "attention.sliding_window", 0);
  if (!window) {
    return tl::unexpected(window.error());
  }
  spec.architecture = "Phi3ForCausalLM";
  const bool gguf = metadata.is_gguf();
  spec.names.qkv = gguf ? "blk.{}.attn_qkv.weight" : "model.layers.{}.self_attn.qkv_proj.weight";
  spec.names.gate_up = gguf ? "blk.{}.ffn_up.weight" : "model.layers.{}.mlp.gate_up_proj.weight";
  for (LayerSpec& layer : spec.layers) {
    layer.attention.window = *window;
  }
  return {};
}

}  // namespace warprow
