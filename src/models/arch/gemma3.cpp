// SPDX-License-Identifier: Apache-2.0
#include "models/arch/arch.h"
#include "models/arch/gemma_layers.h"

namespace warprow {
namespace {

// Global layers have a long theta, possibly with rope scaling; sliding layers have a short one.
Result<void> read_gemma3_ropes(const ModelMetadata& metadata, DecoderSpec& spec) {
  const int32_t head_dim = spec.layers.front().attention.head_dim;
  const RopeSpec global = spec.ropes.front();
  RopeSpec local;
  local.rot_dim = head_dim;
  auto local_theta = metadata.float_or("rope_local_base_freq", "rope.freq_base_swa", 10000.0F);
  auto global_of = metadata.rope_of("full_attention", global, head_dim);
  auto local_of = metadata.rope_of("sliding_attention", local, head_dim);
  if (!local_theta || !global_of || !local_of) {
    return tl::unexpected(!local_theta ? local_theta.error()
                          : !global_of ? global_of.error()
                                       : local_of.error());
  }
  local.theta = *local_theta;
  if (!metadata.is_gguf() && !*global_of && !metadata.has_json("rope_theta")) {
    return fail(ErrorCode::kCorrupt, "config.json: rope_theta is missing");
  }
  spec.ropes = {global_of->value_or(global), local_of->value_or(local)};
  return {};
}

}  // namespace

// Gemma 3's text models: head norms, and a rope of their own for sliding layers. The last of every six layers is
// global.
Result<void> make_gemma3(const ModelMetadata& metadata, DecoderSpec& spec) {
  spec.architecture = metadata.architecture() == "Gemma3ForConditionalGeneration"
                          ? "Gemma3ForConditionalGeneration"
                          : "Gemma3ForCausalLM";
  if (auto layers = read_gemma_layers(metadata, {.global_every = 6, .wide_model_layers = 62}, spec);
      !layers) {
    return layers;
  }
  if (auto ropes = read_gemma3_ropes(metadata, spec); !ropes) {
    return ropes;
  }
  for (LayerSpec& layer : spec.layers) {
    layer.attention.qk_norm = true;
    layer.attention.rope = layer.attention.window == 0 ? kGlobalRope : kLocalRope;
  }
  return {};
}

}  // namespace warprow
