// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"
#include "text/tokenizer.h"

#include <string>
#include <vector>

namespace warprow {

// The token sequences that spell each text, as vLLM takes them: without space in front, and with
// one where the tokenizer then begins with another token and needs no more of them (" cat" as a
// token of its own). A sequence is empty only if the tokenizer has nothing for a text.
[[nodiscard]] std::vector<std::vector<TokenId>> encode_bad_words(
    const std::vector<std::string>& texts, const Tokenizer& tokenizer);

}  // namespace warprow
