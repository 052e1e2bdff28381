// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "base/ids.h"
#include "server/response/api_error.h"

#include <cstdint>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include <tl/expected.hpp>

namespace warprow {

class Tokenizer;

// Encodes prompts. A text that is too long for the model costs little: it is refused by its length in bytes, or after
// its beginning has too many tokens.
//
// Thread: any. The tokenizer must outlive it.
class PromptEncoder {
 public:
  PromptEncoder(const Tokenizer& tokenizer, int64_t max_model_len)
      : tokenizer_(tokenizer), max_model_len_(max_model_len) {}

  // Checks the length alone: an error if the text is longer than max_model_len tokens of the longest kind. nullopt: the
  // text may fit. The error may be wrong for a tokenizer that drops much of a text, such as long runs of spaces. field:
  // for the message.
  [[nodiscard]] std::optional<ApiError> length_error(std::string_view text,
                                                     const char* field) const;
  // All tokens of a text, or the error if the text is too long.
  [[nodiscard]] tl::expected<std::vector<TokenId>, ApiError> encode(std::string_view text,
                                                                    bool add_special,
                                                                    const char* field) const;

 private:
  // Scans the vocabulary once, on the first use.
  [[nodiscard]] int64_t longest_token_bytes() const;
  // The error for a text with at least num_toks tokens, if these are too many.
  [[nodiscard]] std::optional<ApiError> error(std::string_view text,
                                              int64_t num_toks,
                                              const char* field) const;

  const Tokenizer& tokenizer_;
  int64_t max_model_len_;
  mutable std::once_flag looked_through_;
  mutable int64_t longest_token_bytes_ = 1;
};

}  // namespace warprow
