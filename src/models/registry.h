// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "models/decoder_spec.h"
#include "weights/checkpoint.h"

#include <string>

namespace warprow {

// The spec of a checkpoint from either container. Reads metadata only. A class ...Model or ...ForSequenceClassification
// is read as the one that generates.
// Errors: an architecture or option that is not supported (named, with what is), a missing or
// contradictory field.
Result<DecoderSpec> read_decoder_spec(const Checkpoint& checkpoint);

// The architectures that read_decoder_spec supports, for messages: "LlamaForCausalLM, ...".
std::string supported_architectures();

}  // namespace warprow
