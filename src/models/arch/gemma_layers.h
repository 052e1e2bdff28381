// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "models/decoder_spec.h"
#include "models/metadata.h"

#include <cstdint>

namespace warprow {

// What Gemma 2 and 3 share: norms on both sides of attention and feed-forward, stored as differences to one (in GGUF as
// they are), tanh GELU, scaled embeddings, a scale of attention of its own, soft caps, and sliding layers between
// global ones.

// Which of a generation's tables of positions a layer takes: Gemma 3 and 4.
enum GemmaRope : int32_t { kGlobalRope, kLocalRope };

// What a generation has when its files do not say.
struct GemmaDefaults {
  int32_t global_every = 0;    // the last of so many layers is global
  float attention_cap = 0.0F;  // of config.json; 0: none
  float logits_cap = 0.0F;
  int32_t wide_model_layers =
      0;  // GGUF: the model of so many layers scales by the width of all heads
};

Result<void> read_gemma_layers(const ModelMetadata& metadata,
                               const GemmaDefaults& defaults,
                               DecoderSpec& spec);

}  // namespace warprow
