// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "base/ids.h"

#include <cstdint>
#include <string_view>
#include <vector>

namespace warprow {

// Token ids as `warprow tokenize` writes them: numbers between blanks or commas, a JSON list of
// them, or an object with such a list under token_ids. kInvalidArgument names the first that is not
// in [0, vocab_size).
Result<std::vector<TokenId>> parse_token_list(std::string_view text, int32_t vocab_size);

}  // namespace warprow
