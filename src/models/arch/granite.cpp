// SPDX-License-Identifier: Apache-2.0
#include "models/arch/arch.h"

#include <fmt/format.h>

namespace warprow {

// Granite 3: Llama with four factors.
Result<void> make_granite(const ModelMetadata& metadata, DecoderSpec& spec) {
  // GGUF leaves out the scale of attention if it is the usual one, config.json if it is 1.
  const float usual = metadata.is_gguf() ? spec.layers.front().attention.scale : 1.0F;
  auto embedding = metadata.float_or("embedding_multiplier", "embedding_scale", 1.0F);
  auto attention = metadata.float_or("attention_multiplier", "attention.scale", usual);
  auto residual = metadata.float_or("residual_multiplier", "residual_scale", 1.0F);
  auto logits = metadata.float_or("logits_scaling", "logit_scale", 1.0F);
  for (const auto* value : {&embedding, &attention, &residual, &logits}) {
    if (!*value) {
      return tl::unexpected(value->error());
    }
  }
  if (*logits == 0.0F) {
    return fail(ErrorCode::kCorrupt, "model config: logits_scaling is 0");
  }
  if (auto llama = make_llama(metadata, spec); !llama) {
    return llama;
  }
  spec.architecture = "GraniteForCausalLM";
  spec.embed_scale = *embedding;
  spec.logits_divisor = *logits;
  for (LayerSpec& layer : spec.layers) {
    layer.attention.scale = *attention;
    layer.residual_scale = *residual;
  }
  return {};
}

}  // namespace warprow
