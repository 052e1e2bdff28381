// SPDX-License-Identifier: Apache-2.0
#include "models/arch/arch.h"

namespace warprow {

// Mistral (Jiang et al.): Llama's forward; the early ones with a sliding window in every layer. Its GGUF files name
// the architecture "llama", so make_llama handles them.
Result<void> make_mistral(const ModelMetadata& metadata, DecoderSpec& spec) {
  auto window = metadata.count_or("sliding_window", "attention.sliding_window", 0);
  if (!window) {
    return tl::unexpected(window.error());
  }
  spec.architecture = "MistralForCausalLM";
  for (LayerSpec& layer : spec.layers) {
    layer.attention.window = *window;
  }
  return {};
}

}  // namespace warprow
