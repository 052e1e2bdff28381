// SPDX-License-Identifier: Apache-2.0
#include "text/thinking.h"

#include "text/tokenizer.h"

#include <algorithm>

namespace warprow {
namespace {

// The matched length of the end tag after one more byte. The tag's first byte occurs only once in it, so a byte that
// does not continue the tag can only begin it again.
std::size_t advance(std::size_t matched, char byte) {
  if (byte == kEndThinkTag[matched]) {
    return matched + 1;
  }
  return byte == kEndThinkTag.front() ? 1 : 0;
}

struct Read {
  std::size_t matched = 0;
  std::string_view rest{};  // the bytes after the complete tag
};

Read read(std::size_t matched, std::string_view bytes) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    matched = advance(matched, bytes[i]);
    if (matched == kEndThinkTag.size()) {
      return {matched, bytes.substr(i + 1)};
    }
  }
  return {matched};
}

bool overruns(std::size_t matched, std::string_view bytes) {
  return read(matched, bytes).rest.find_first_not_of(" \t\r\n") != std::string_view::npos;
}

}  // namespace

ThinkingTags::ThinkingTags(const Tokenizer& tokenizer)
    : tokenizer_(tokenizer), start_(tokenizer.find(kThinkTag)) {
  const std::optional<TokenId> end = tokenizer.find(kEndThinkTag);
  if (end) {
    closers_.fill({*end});
  }
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view bytes = tokenizer.token_bytes(id);
    for (std::size_t matched = 0; !end && matched < closers_.size(); ++matched) {
      if (!bytes.empty() && kEndThinkTag.substr(matched).starts_with(bytes)) {
        closers_[matched].push_back(id);
      }
    }
    if (bytes.find(kEndThinkTag.back()) == std::string_view::npos) {
      continue;
    }
    for (std::size_t matched = 0; matched < overruns_.size(); ++matched) {
      if (overruns(matched, bytes)) {
        overruns_[matched].push_back(id);
      }
    }
  }
}

bool ThinkingTags::can_close() const {
  return std::ranges::none_of(closers_, [](const auto& ids) { return ids.empty(); });
}

ThinkingWatch::ThinkingWatch(const ThinkingTags& tags, Thinking thinking, int64_t budget)
    : left_(tags.can_close() ? budget : kNoThinkingBudget) {
  if (thinking == Thinking::kOpen) {
    at_ = At::kInside;
  } else if (thinking == Thinking::kMaybe && tags.start()) {
    at_ = At::kStart;
  }
  tags_ = at_ == At::kBehind ? nullptr : &tags;
}

bool ThinkingWatch::take(TokenId token) {
  switch (at_) {
    case At::kStart:
      at_ = token == tags_->start() ? At::kInside : At::kBehind;
      return is_inside();
    case At::kInside:
      matched_ = read(matched_, tags_->tokenizer_.token_bytes(token)).matched;
      left_ -= left_ == kNoThinkingBudget ? 0 : 1;
      at_ = matched_ == kEndThinkTag.size() ? At::kBehind : At::kInside;
      return true;
    case At::kBehind:
      break;
  }
  return false;
}

std::span<const TokenId> ThinkingWatch::forbidden() const {
  return is_inside() ? std::span<const TokenId>(tags_->overruns_[matched_])
                     : std::span<const TokenId>();
}

std::span<const TokenId> ThinkingWatch::closing() const {
  return is_inside() && left_ <= 0 ? std::span<const TokenId>(tags_->closers_[matched_])
                                   : std::span<const TokenId>();
}

std::optional<TokenId> ThinkingWatch::opening() const {
  return at_ == At::kStart ? tags_->start() : std::nullopt;
}

}  // namespace warprow
