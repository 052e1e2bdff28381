// SPDX-License-Identifier: Apache-2.0
#include "models/arch/arch.h"
#include "models/arch/layer_windows.h"

#include <algorithm>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr const char* kSlidingQwen = "sliding_attention";

}  // namespace

// Which layers slide: config.json's layer_types, or Qwen's older rule that layers from
// max_window_layers on do when use_sliding_window is set.
Result<void> read_layer_windows(const ModelMetadata& metadata, DecoderSpec& spec) {
  auto use = metadata.bool_or("use_sliding_window", false);
  auto types = metadata.layer_types();
  // Transformers 5 writes 0 where no layer slides.
  const bool slide = use && types && (*use || std::ranges::count(*types, kSlidingQwen) > 0);
  auto window = slide ? metadata.count_or("sliding_window", "", 0) : Result<int32_t>(0);
  auto full_layers = metadata.count_or("max_window_layers", "", spec.num_layers);
  if (!use || !window || !types || !full_layers) {
    return tl::unexpected(!use      ? use.error()
                          : !types  ? types.error()
                          : !window ? window.error()
                                    : full_layers.error());
  }
  if (!types->empty() && types->size() != spec.layers.size()) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("config.json: layer_types has {} entries for {} layers",
                            types->size(),
                            spec.layers.size()));
  }
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const bool slides = types->empty() ? *use && static_cast<int32_t>(i) >= *full_layers
                                       : (*types)[i] == kSlidingQwen;
    if (!types->empty() && !slides && (*types)[i] != "full_attention") {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("layer type {} is not supported", (*types)[i]));
    }
    if (slides && *window == 0) {
      return fail(ErrorCode::kCorrupt, "config.json: sliding layers without sliding_window");
    }
    spec.layers[i].attention.window = slides ? *window : 0;
  }
  return {};
}

// Qwen2 and Qwen2.5: biases on Q, K and V.
Result<void> make_qwen2(const ModelMetadata& metadata, DecoderSpec& spec) {
  spec.architecture = "Qwen2ForCausalLM";
  spec.qkv_bias = true;
  return read_layer_windows(metadata, spec);
}

}  // namespace warprow
