// SPDX-License-Identifier: Apache-2.0
#include "models/arch/encoder_layers.h"

#include <fmt/format.h>

namespace warprow {

Result<DecoderSpec> common_encoder_spec(const ModelMetadata& metadata,
                                        const EncoderKeys& keys,
                                        const std::string& embed) {
  const auto layers = metadata.require_count(keys.num_layers, "");
  const auto hidden = metadata.require_count(keys.hidden_size, "");
  const auto heads = metadata.require_count(keys.num_heads, "");
  const auto inner = metadata.require_count(keys.intermediate_size, "");
  const auto position = metadata.require_count(keys.max_position, "");
  const auto vocab = metadata.require_count("vocab_size", "");
  for (const auto* count : {&layers, &hidden, &heads, &inner, &position, &vocab}) {
    if (!*count) {
      return tl::unexpected(count->error());
    }
  }
  const auto eps = metadata.float_or(keys.norm_eps, "", keys.usual_norm_eps);
  if (!eps) {
    return tl::unexpected(eps.error());
  }
  if (*hidden % *heads != 0) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("config.json: {} {} is no multiple of {} {}",
                            keys.hidden_size,
                            *hidden,
                            keys.num_heads,
                            *heads));
  }
  DecoderSpec spec;
  spec.architecture = metadata.architecture();
  spec.num_layers = *layers;
  spec.hidden_size = *hidden;
  spec.max_position = *position;
  spec.rms_eps = *eps;
  spec.vocab_size = *vocab;
  // It may have more rows than the tokenizer has tokens.
  if (metadata.checkpoint().has_tensors()) {
    const auto table = metadata.checkpoint().require(embed);
    if (!table) {
      return tl::unexpected(table.error());
    }
    spec.vocab_size = static_cast<int32_t>((*table)->rows);
  }
  LayerSpec layer;
  layer.attention = plain_attention(*heads, *heads, *hidden / *heads);
  layer.attention.rope = kNoRope;
  layer.attention.causal = false;
  layer.ffn.intermediate_size = *inner;
  layer.ffn.activation = Activation::kGelu;
  set_uniform_layers(spec, layer);
  spec.names.embed = embed;
  spec.encoder.emplace();
  return spec;
}

Result<void> read_encoder_activation(const ModelMetadata& metadata,
                                     const char* key,
                                     DecoderSpec& spec) {
  const auto name = metadata.string_or(key, "", "gelu");
  if (!name) {
    return tl::unexpected(name.error());
  }
  const bool exact = *name == "gelu";
  if (!exact && *name != "gelu_new" && *name != "gelu_pytorch_tanh") {
    return fail(ErrorCode::kUnsupported,
                fmt::format("config.json: {} {} is not supported (gelu, gelu_new and "
                            "gelu_pytorch_tanh are)",
                            key,
                            *name));
  }
  for (LayerSpec& layer : spec.layers) {
    layer.ffn.activation = exact ? Activation::kGelu : Activation::kGeluTanh;
  }
  return {};
}

std::string encoder_prefix(const ModelMetadata& metadata,
                           const std::string& tensor,
                           std::initializer_list<const char*> prefixes) {
  for (const char* prefix : prefixes) {
    if (metadata.checkpoint().find(prefix + tensor) != nullptr) {
      return prefix;
    }
  }
  return *prefixes.begin();
}

}  // namespace warprow
