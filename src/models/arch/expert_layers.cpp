// SPDX-License-Identifier: Apache-2.0
#include "models/arch/expert_layers.h"

#include "models/weight_names.h"

#include <algorithm>

namespace warprow {
namespace {

// GGUF metadata has no list of layers without experts, so this looks at the layer's tensors.
bool is_dense_in_gguf(const ModelMetadata& metadata, const DecoderSpec& spec, int32_t layer) {
  const Checkpoint& checkpoint = metadata.checkpoint();
  return metadata.is_gguf() && checkpoint.find(layer_name(spec.names.gate, layer)) != nullptr &&
         checkpoint.find(layer_name(spec.names.router, layer)) == nullptr;
}

}  // namespace

Result<FfnSpec> read_experts(const ModelMetadata& metadata, FfnSpec dense) {
  // As published, and as transformers 5 writes it.
  const char* key = metadata.has_json("num_experts") ? "num_experts" : "num_local_experts";
  auto count = metadata.require_count(key, "expert_count");
  auto chosen = metadata.require_count("num_experts_per_tok", "expert_used_count");
  auto size = metadata.count_or("", "expert_feed_forward_length", dense.intermediate_size);
  if (!count || !chosen || !size) {
    return tl::unexpected(!count ? count.error() : !chosen ? chosen.error() : size.error());
  }
  dense.num_experts = *count;
  dense.experts_per_token = *chosen;
  dense.intermediate_size = *size;
  return dense;
}

Result<void> read_qwen_experts(const ModelMetadata& metadata, bool normalise, DecoderSpec& spec) {
  auto experts = read_experts(metadata, spec.layers.front().ffn);
  auto step = metadata.count_or("decoder_sparse_step", "", 1);
  auto dense_layers = metadata.indices("mlp_only_layers");
  auto normalised = metadata.bool_or("norm_topk_prob", metadata.is_gguf() && normalise);
  if (!experts || !step || !dense_layers || !normalised) {
    return tl::unexpected(!experts        ? experts.error()
                          : !step         ? step.error()
                          : !dense_layers ? dense_layers.error()
                                          : normalised.error());
  }
  if (!metadata.is_gguf()) {
    auto size = metadata.require_count("moe_intermediate_size", "");
    if (!size) {
      return tl::unexpected(size.error());
    }
    experts->intermediate_size = *size;
  }
  experts->normalise = *normalised;
  for (int32_t i = 0; i < spec.num_layers; ++i) {
    const bool listed = std::ranges::count(*dense_layers, i) > 0 || (i + 1) % *step != 0;
    if (!listed && !is_dense_in_gguf(metadata, spec, i)) {
      spec.layers[static_cast<size_t>(i)].ffn = *experts;
    }
  }
  return {};
}

}  // namespace warprow
