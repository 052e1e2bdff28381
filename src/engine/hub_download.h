// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "files/model_files.h"

#include <functional>
#include <string>

namespace warprow {

using TellUser = std::function<void(const std::string& text)>;

// If `model` is an alias or a Hub name with an organisation, and is not on this machine, downloads its files to the
// Hugging Face cache. Resumes an interrupted download. resolve_model checks all other names.
// tell: gets what the user should read on standard error: what is downloaded, and, if that is a terminal, a line of
// progress that is drawn again and again.
//
// Reads HF_ENDPOINT (default https://huggingface.co), HF_TOKEN or the token file of the Hub's own tools, and
// HF_HUB_DOWNLOAD_TIMEOUT. With HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE set it opens no socket. Errors: the Hub's
// response; choose_hub_files; too little space on the disk.
Result<void> ensure_model(const std::string& model, WeightFiles weights, const TellUser& tell);

}  // namespace warprow
