// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "models/decoder_spec.h"
#include "models/metadata.h"

namespace warprow {

// Fills DecoderSpec::layers' windows by the rule that the Qwen families share.
Result<void> read_layer_windows(const ModelMetadata& metadata, DecoderSpec& spec);

}  // namespace warprow
