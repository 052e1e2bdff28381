// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "text/text_model.h"

#include <memory>

namespace warprow {

// A replacement for models without a tokenizer, such as benchmarks with random weights: token b is the byte b, all
// other tokens have no text. It has no chat template and no end token.
Result<std::unique_ptr<TextModel>> make_byte_text();

}  // namespace warprow
