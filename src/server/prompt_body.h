// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "base/ids.h"

#include <string>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

namespace warprow {

using TextOrIds = std::variant<std::string, std::vector<TokenId>>;

// Limit of prompts in one request, as in vLLM.
inline constexpr size_t kMaxPrompts = 1024;

// /v1/completions' prompt: text, token ids, or a list of either kind.
Result<std::vector<TextOrIds>> read_prompts(const char* field, const nlohmann::ordered_json& value);

// A list of token ids, each within 32 bits.
Result<std::vector<TokenId>> read_token_ids(const char* field, const nlohmann::ordered_json& value);

}  // namespace warprow
