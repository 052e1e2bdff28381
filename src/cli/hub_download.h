// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "files/model_files.h"

#include <string>

namespace warprow {

// If `model` is an alias or a name of the Hub with an organisation, and not on this machine, downloads
// what it needs to the Hugging Face cache, from where a broken download stopped; says so on stderr.
// Everything else is left to resolve_model to judge.
//
// HF_ENDPOINT (https://huggingface.co), HF_TOKEN or the token file of the Hub's own tools,
// HF_HUB_DOWNLOAD_TIMEOUT; with HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE set no socket is opened. Errors:
// what the Hub answered; choose_hub_files; too little space on the disk.
Result<void> ensure_model(const std::string& model, WeightFiles weights);

}  // namespace warprow
