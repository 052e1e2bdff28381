// SPDX-License-Identifier: Apache-2.0
#include "server/prompt_encoder.h"

#include "engine/prompt_length.h"
#include "text/tokenizer.h"

#include <algorithm>
#include <string>
#include <utility>

namespace warprow {
namespace {

// The first kBytesPerToken * max_model_len bytes of a text usually have more than max_model_len tokens.
constexpr int64_t kBytesPerToken = 16;
// The beginning may end within a token of the whole text and so have a few more tokens. Twice max_model_len is too many
// in any case.
constexpr int64_t kTooManyTimes = 2;

// The first `size` bytes, or fewer so that the end is not within a character.
std::string_view beginning(std::string_view text, size_t size) {
  constexpr unsigned kTail = 0x80;
  constexpr unsigned kTailMask = 0xC0;
  while (size > 0 && (static_cast<unsigned char>(text[size]) & kTailMask) == kTail) {
    --size;
  }
  return text.substr(0, size);
}

}  // namespace

int64_t PromptEncoder::longest_token_bytes() const {
  std::call_once(looked_through_, [this] {
    for (TokenId id = 0; id < tokenizer_.vocab_size(); ++id) {
      longest_token_bytes_ = std::max({longest_token_bytes_,
                                       std::ssize(tokenizer_.token_bytes(id)),
                                       std::ssize(tokenizer_.token_text(id))});
    }
  });
  return longest_token_bytes_;
}

std::optional<ApiError> PromptEncoder::length_error(std::string_view text,
                                                    const char* field) const {
  if (std::ssize(text) <= max_model_len_) {
    return std::nullopt;
  }
  return error(text, std::ssize(text) / longest_token_bytes(), field);
}

tl::expected<std::vector<TokenId>, ApiError> PromptEncoder::encode(std::string_view text,
                                                                   bool add_special,
                                                                   const char* field) const {
  if (std::optional<ApiError> too_long = length_error(text, field)) {
    return tl::unexpected(*std::move(too_long));
  }
  const int64_t first_bytes = kBytesPerToken * max_model_len_;
  if (std::ssize(text) > 2 * first_bytes) {
    const std::string_view first = beginning(text, static_cast<size_t>(first_bytes));
    const int64_t num_toks = std::ssize(tokenizer_.encode(first, add_special));
    if (num_toks > kTooManyTimes * max_model_len_) {
      return tl::unexpected(*error(text, num_toks, field));
    }
  }
  return tokenizer_.encode(text, add_special);
}

std::optional<ApiError> PromptEncoder::error(std::string_view text,
                                             int64_t num_toks,
                                             const char* field) const {
  std::optional<PromptExcess> excess =
      PromptLength(max_model_len_).judge_text(text.size(), num_toks, field);
  return excess ? std::optional(context_error(*std::move(excess), field)) : std::nullopt;
}

}  // namespace warprow
