// SPDX-License-Identifier: Apache-2.0
#include "models/arch/arch.h"
#include "models/arch/expert_layers.h"
#include "models/weight_names.h"

namespace warprow {

// Mixtral (Jiang et al.): Mistral with experts, whose weights are normalised. Its GGUF files name the architecture
// "llama", so make_llama handles them.
Result<void> make_mixtral(const ModelMetadata& metadata, DecoderSpec& spec) {
  if (auto mistral = make_mistral(metadata, spec); !mistral) {
    return mistral;
  }
  auto experts = read_experts(metadata, spec.layers.front().ffn);
  if (!experts) {
    return tl::unexpected(experts.error());
  }
  experts->normalise = true;
  for (LayerSpec& layer : spec.layers) {
    layer.ffn = *experts;
  }
  spec.architecture = "MixtralForCausalLM";
  const std::string layer = "model.layers.{}.block_sparse_moe.";
  // Transformers 5 can keep its own names, of which the usual ones are these.
  if (metadata.checkpoint().find(layer_name(spec.names.router, 0)) == nullptr) {
    spec.names.router = layer + "gate.weight";
  }
  spec.names.expert_gate = layer + "experts.{}.w1.weight";
  spec.names.expert_up = layer + "experts.{}.w3.weight";
  spec.names.expert_down = layer + "experts.{}.w2.weight";
  return {};
}

}  // namespace warprow
