// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "base/ids.h"

#include <cstdint>
#include <string_view>
#include <vector>

namespace warprow {

// Parses token ids in the formats of `warprow tokenize`: numbers separated by blanks or commas, a JSON list of numbers,
// or an object with such a list under token_ids. kInvalidArgument names the first id that is not in [0, vocab_size).
Result<std::vector<TokenId>> parse_token_list(std::string_view text, int32_t vocab_size);

}  // namespace warprow
