// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "models/decoder_spec.h"
#include "models/metadata.h"

namespace warprow {

// What the Qwen hybrids share: gated delta nets in the layers that are not of full attention, gated attention in the
// others, norms stored as differences from one. by_key_head: how the input matrices are ordered.
Result<void> read_delta_layers(const ModelMetadata& metadata, bool by_key_head, DecoderSpec& spec);

// Experts of which the weights of a token are normalised unless config.json says otherwise, and one that all tokens take.
Result<void> read_hybrid_experts(const ModelMetadata& metadata, DecoderSpec& spec);

}  // namespace warprow
