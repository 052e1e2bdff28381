// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "models/decoder_spec.h"
#include "models/pooler.h"
#include "weights/checkpoint.h"

namespace warprow {

// Reads what an encoder with ForSequenceClassification has behind its hidden states: a dense layer of the first token (or
// of ModernBERT's mean), then a logit for each label. Sets the pooler's layers, method and width.
//
// Errors: a tensor that is missing or has another shape; a classifier_pooling or activation that is not supported.
Result<void> read_encoder_head(const Checkpoint& checkpoint,
                               const DecoderSpec& spec,
                               Pooler& pooler);

}  // namespace warprow
