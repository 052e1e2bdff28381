// SPDX-License-Identifier: Apache-2.0
#include "models/arch/arch.h"
#include "models/arch/delta_layers.h"

namespace warprow {

// Qwen3-Next: gated delta nets and gated attention, experts. The tensors of its drafting head (mtp.) are not read.
Result<void> make_qwen3_next(const ModelMetadata& metadata, DecoderSpec& spec) {
  if (auto layers = read_delta_layers(metadata, true, spec); !layers) {
    return layers;
  }
  return read_hybrid_experts(metadata, spec);
}

}  // namespace warprow
