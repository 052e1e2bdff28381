// SPDX-License-Identifier: Apache-2.0
#include "models/arch/arch.h"

#include <string>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

Result<void> read_smollm3_windows(const ModelMetadata& metadata, DecoderSpec& spec) {
  auto use = metadata.bool_or("use_sliding_window", false);
  auto window = metadata.count_or("sliding_window", "", 0);
  auto types = metadata.layer_types();
  if (!use || !window || !types) {
    return tl::unexpected(!use ? use.error() : !window ? window.error() : types.error());
  }
  if (!*use || *window == 0) {
    return {};
  }
  if (!types->empty() && types->size() != spec.layers.size()) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("config.json: layer_types has {} entries for {} layers",
                            types->size(),
                            spec.layers.size()));
  }
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    AttentionSpec& attention = spec.layers[i].attention;
    const bool slides =
        types->empty() ? attention.rope == kNoRope : (*types)[i] == "sliding_attention";
    attention.window = slides ? *window : 0;
  }
  return {};
}

}  // namespace

// SmolLM3: Llama, with some layers without rope: every fourth, or those with 0 in no_rope_layers.
Result<void> make_smollm3(const ModelMetadata& metadata, DecoderSpec& spec) {
  auto interval = metadata.count_or("no_rope_layer_interval", "", 4);
  auto has_rope = metadata.indices("no_rope_layers");
  if (!interval || !has_rope) {
    return tl::unexpected(!interval ? interval.error() : has_rope.error());
  }
  if (!has_rope->empty() && has_rope->size() < spec.layers.size()) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("config.json: no_rope_layers has {} entries for {} layers",
                            has_rope->size(),
                            spec.layers.size()));
  }
  if (auto llama = make_llama(metadata, spec); !llama) {
    return llama;
  }
  spec.architecture = "SmolLM3ForCausalLM";
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const bool rope =
        has_rope->empty() ? (i + 1) % static_cast<size_t>(*interval) != 0 : (*has_rope)[i] != 0;
    spec.layers[i].attention.rope = rope ? 0 : kNoRope;
  }
  return read_smollm3_windows(metadata, spec);
}

}  // namespace warprow
