// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/metadata.h"

#include <string>
#include <string_view>

namespace warprow {

// The keys of config.json under which an encoder's sizes are found.
struct EncoderKeys {
  const char* num_layers = "num_hidden_layers";
  const char* hidden_size = "hidden_size";
  const char* num_heads = "num_attention_heads";
  const char* intermediate_size = "intermediate_size";
  const char* max_position = "max_position_embeddings";
  const char* norm_eps = "layer_norm_eps";
  float usual_norm_eps = 1e-12F;
};

// Layers of attention to both sides, all alike, with these sizes; the tensor of embeddings is `embed`, and gives the
// vocabulary's size.
Result<DecoderSpec> common_encoder_spec(const ModelMetadata& metadata,
                                        const EncoderKeys& keys,
                                        const std::string& embed);

// Sets the activation of all layers. Errors: another than gelu and its tanh form.
Result<void> read_encoder_activation(const ModelMetadata& metadata,
                                     const char* key,
                                     DecoderSpec& spec);

// Which of the prefixes the checkpoint's tensors have; the first if no tensor is looked at, or none fits.
std::string encoder_prefix(const ModelMetadata& metadata,
                           const std::string& tensor,
                           std::initializer_list<const char*> prefixes);

}  // namespace warprow
