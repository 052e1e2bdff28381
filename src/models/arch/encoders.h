// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/metadata.h"

namespace warprow {

// One function for each family of encoders: maps its config.json to a spec. Errors: what is missing or not supported.
Result<DecoderSpec> read_bert(const ModelMetadata& metadata);
Result<DecoderSpec> read_roberta(const ModelMetadata& metadata);
Result<DecoderSpec> read_modernbert(const ModelMetadata& metadata);
Result<DecoderSpec> read_nomic_bert(const ModelMetadata& metadata);

}  // namespace warprow
