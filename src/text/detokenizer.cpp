// SPDX-License-Identifier: Apache-2.0
#include "text/detokenizer.h"

#include "base/utf8.h"

#include <string_view>

namespace warprow {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, Options options)
    : tokenizer_(&tokenizer),
      options_(options),
      at_start_(tokenizer.strips_leading_space() && !options.continues) {}

std::string Detokenizer::push(TokenId id) {
  const bool is_special = tokenizer_->is_special(id);
  if (options_.skip_special && is_special) {
    return {};
  }
  const bool without_space = !options_.spaces_between_special && is_special && behind_special_;
  std::string_view bytes = without_space ? tokenizer_->token_text(id) : tokenizer_->token_bytes(id);
  behind_special_ = is_special;
  if (at_start_ && !bytes.empty()) {
    at_start_ = false;
    if (bytes.starts_with(' ')) {
      bytes.remove_prefix(1);
    }
  }
  held_ += bytes;
  const size_t tail = utf8_incomplete_tail(held_);
  const size_t ready = held_.size() - tail;
  std::string text;
  append_utf8_lossy(std::string_view(held_).substr(0, ready), text);
  held_.erase(0, ready);
  return text;
}

std::string Detokenizer::flush() {
  std::string text;
  append_utf8_lossy(held_, text);
  held_.clear();
  return text;
}

}  // namespace warprow
