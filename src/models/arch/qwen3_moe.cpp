// SPDX-License-Identifier: Apache-2.0
#include "models/arch/arch.h"
#include "models/arch/expert_layers.h"

namespace warprow {

// Qwen3-MoE: Qwen3's attention, and experts. A sliding window is that of all layers.
Result<void> make_qwen3_moe(const ModelMetadata& metadata, DecoderSpec& spec) {
  if (auto qwen3 = make_qwen3(metadata, spec); !qwen3) {
    return qwen3;
  }
  auto slides = metadata.bool_or("use_sliding_window", false);
  auto window = metadata.count_or("sliding_window", "", 0);
  if (!slides || !window) {
    return tl::unexpected(!slides ? slides.error() : window.error());
  }
  spec.architecture = "Qwen3MoeForCausalLM";
  for (LayerSpec& layer : spec.layers) {
    layer.attention.window = *slides ? *window : 0;
  }
  return read_qwen_experts(metadata, true, spec);
}

}  // namespace warprow
