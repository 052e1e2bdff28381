// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "models/decoder_spec.h"
#include "models/metadata.h"

namespace warprow {

// The layers that predict further tokens follow the model's own, and are not read. GGUF counts them among the layers.
Result<void> leave_out_predictors(const ModelMetadata& metadata, DecoderSpec& spec);

}  // namespace warprow
