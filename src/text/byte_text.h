// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "text/text_model.h"

#include <memory>

namespace warprow {

// A stand-in for models without a tokenizer, as measurements with random weights have: token b is
// the byte b, all other tokens are no text. No chat template, no token that ends an answer.
Result<std::unique_ptr<TextModel>> make_byte_text();

}  // namespace warprow
