// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"
#include "text/tokenizer.h"

#include <string>
#include <vector>

namespace warprow {

// The token sequences that spell each text, by vLLM's rule: one without a leading space, and one with it
// if that has another first token and the same length (" cat" as a token of its own). A sequence is empty
// only if the tokenizer yields no token for a text.
[[nodiscard]] std::vector<std::vector<TokenId>> encode_bad_words(
    const std::vector<std::string>& texts, const Tokenizer& tokenizer);

}  // namespace warprow
