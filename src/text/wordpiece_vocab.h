// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace warprow {

// BERT's tokenizer as older checkpoints have it: vocab.txt with a token a line. Returns the equivalent tokenizer.json.
// config: tokenizer_config.json's object, of which do_lower_case, strip_accents, tokenize_chinese_chars and the names of
// the special tokens are read. where: the file's name for messages.
// Errors: a vocabulary without the unknown token, or without the tokens around a text.
Result<std::string> wordpiece_json(std::string_view vocab,
                                   const nlohmann::json& config,
                                   const std::string& where);

}  // namespace warprow
