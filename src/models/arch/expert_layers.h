// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "models/decoder_spec.h"
#include "models/metadata.h"

namespace warprow {

// Adds the counts of experts, in all containers' spellings, to a dense feed-forward. An expert has its intermediate
// size, unless GGUF metadata declares another.
Result<FfnSpec> read_experts(const ModelMetadata& metadata, FfnSpec dense);

// Gives the layers of a Qwen family experts: all but those of mlp_only_layers and, with a decoder_sparse_step of n, all
// but each n-th. normalise: whether weights are normalised with a GGUF file, which does not say.
Result<void> read_qwen_experts(const ModelMetadata& metadata, bool normalise, DecoderSpec& spec);

}  // namespace warprow
