// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "models/decoder_spec.h"
#include "models/metadata.h"

namespace warprow {

// What the Qwen hybrids share: gated delta nets in the layers that are not of full attention, gated attention in the
// others, norms stored as differences from one. by_key_head: how the family orders the input matrices. GGUF files
// of Qwen3-Next have b and a in that order alone, unless they are old; those of Qwen3.5 tile the value heads. Their norms
// and rates are stored as they are used.
Result<void> read_delta_layers(const ModelMetadata& metadata, bool by_key_head, DecoderSpec& spec);

// Experts of which the weights of a token are normalised unless config.json says otherwise, and one that all tokens take.
Result<void> read_hybrid_experts(const ModelMetadata& metadata, DecoderSpec& spec);

}  // namespace warprow
