// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "text/text_model.h"

#include <memory>
#include <string>

namespace warprow {

// Loads the TextModel of a Hugging Face model directory (see load_text_model). Only tokenizer.json is required.
Result<std::unique_ptr<TextModel>> load_hf_text(const std::string& dir);

}  // namespace warprow
