// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace warprow {

class Tokenizer;

// The tags around a model's thinking, which stands before its answer.
inline constexpr std::string_view kThinkTag = "<think>";
inline constexpr std::string_view kEndThinkTag = "</think>";

// Whether a text begins with a thinking section.
enum class Thinking : int8_t {
  kNone,   // no
  kOpen,   // yes: the prompt has opened it
  kMaybe,  // if its first token is <think>
};

// What a vocabulary says of the tags. <think> opens a section where it is one token. </think> is found in the
// text, so it may be several tokens.
// Thread: immutable; any threads at once.
class ThinkingTags {
 public:
  // The tokenizer must outlive this.
  explicit ThinkingTags(const Tokenizer& tokenizer);

  [[nodiscard]] std::optional<TokenId> start() const { return start_; }

 private:
  friend class ThinkingWatch;

  const Tokenizer& tokenizer_;
  std::optional<TokenId> start_;
  // Tokens that complete </think> behind so many bytes of it, and then add something else than spaces.
  std::array<std::vector<TokenId>, kEndThinkTag.size()> overruns_;
};

// Follows one text, token by token, to the end of its thinking section.
class ThinkingWatch {
 public:
  ThinkingWatch() = default;  // of a text without one
  // tags: outlive this.
  ThinkingWatch(const ThinkingTags& tags, Thinking thinking);

  // Takes the next token, if it belongs to the section or to its tags. False: it is behind them.
  bool take(TokenId token);

  [[nodiscard]] bool is_inside() const { return at_ == At::kInside; }
  // Tokens that may not come next inside, so that the section ends with a token: overruns of its end tag.
  [[nodiscard]] std::span<const TokenId> forbidden() const;
  // The token that may open the section now, beside those that go on without one.
  [[nodiscard]] std::optional<TokenId> opening() const;

 private:
  enum class At : uint8_t { kStart, kInside, kBehind };

  const ThinkingTags* tags_ = nullptr;
  At at_ = At::kBehind;
  std::size_t matched_ = 0;  // bytes of </think> that the text ends with
};

}  // namespace warprow
