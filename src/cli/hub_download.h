// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "files/model_files.h"

#include <string>

namespace warprow {

// If `model` is no path, no alias and not in the Hugging Face cache, but a name of the Hub with an
// organisation, downloads what it needs to that cache, from where a broken download stopped; says so
// on stderr. Everything else is left to resolve_model to judge.
//
// HF_ENDPOINT (https://huggingface.co), HF_TOKEN or the token file of the Hub's own tools; with
// HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE set no socket is opened. Errors: what the Hub answered;
// choose_hub_files.
Result<void> ensure_model(const std::string& model, WeightFiles weights);

}  // namespace warprow
