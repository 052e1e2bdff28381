// SPDX-License-Identifier: Apache-2.0
#include "models/arch/arch.h"
#include "models/arch/gemma_layers.h"

namespace warprow {

// Gemma 2: soft caps on attention and logits; every second layer is global.
Result<void> make_gemma2(const ModelMetadata& metadata, DecoderSpec& spec) {
  spec.architecture = "Gemma2ForCausalLM";
  return read_gemma_layers(
      metadata,
      {.global_every = 2, .attention_cap = 50.0F, .logits_cap = 30.0F, .wide_model_layers = 46},
      spec);
}

}  // namespace warprow
