// SPDX-License-Identifier: Apache-2.0
#include "models/arch/arch.h"
#include "models/arch/delta_layers.h"

namespace warprow {

// Qwen3.5's text model: the layers of Qwen3-Next with a gated feed-forward. The tensors of its vision model
// (model.visual.) and of its drafting head (mtp.) are not read. A text's three positions are equal, so its rope in three
// sections is the plain one.
Result<void> make_qwen3_5(const ModelMetadata& metadata, DecoderSpec& spec) {
  return read_delta_layers(metadata, false, spec);
}

// The same with experts.
Result<void> make_qwen3_5_moe(const ModelMetadata& metadata, DecoderSpec& spec) {
  if (auto layers = read_delta_layers(metadata, false, spec); !layers) {
    return layers;
  }
  return read_hybrid_experts(metadata, spec);
}

}  // namespace warprow
