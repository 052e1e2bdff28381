// SPDX-License-Identifier: Apache-2.0
#include "models/arch/arch.h"
#include "models/arch/expert_layers.h"

namespace warprow {

// Qwen2-MoE and Qwen1.5-MoE: Qwen2's attention, and experts, one of which all tokens share.
Result<void> make_qwen2_moe(const ModelMetadata& metadata, DecoderSpec& spec) {
  if (auto qwen2 = make_qwen2(metadata, spec); !qwen2) {
    return qwen2;
  }
  auto bias = metadata.bool_or("qkv_bias", true);
  auto shared = metadata.require_count("shared_expert_intermediate_size",
                                       "expert_shared_feed_forward_length");
  if (!bias || !shared) {
    return tl::unexpected(!bias ? bias.error() : shared.error());
  }
  if (auto experts = read_qwen_experts(metadata, false, spec); !experts) {
    return experts;
  }
  spec.architecture = "Qwen2MoeForCausalLM";
  spec.qkv_bias = *bias;
  for (LayerSpec& layer : spec.layers) {
    layer.ffn.shared_size = layer.ffn.has_experts() ? *shared : 0;
  }
  return {};
}

}  // namespace warprow
