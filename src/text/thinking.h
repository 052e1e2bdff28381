// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace warprow {

class Tokenizer;

// The tags of the reasoning section, which precedes a model's answer.
inline constexpr std::string_view kThinkTag = "<think>";
inline constexpr std::string_view kEndThinkTag = "</think>";

// Whether a text begins with a reasoning section.
enum class Thinking : int8_t {
  kNone,   // no
  kOpen,   // yes: the prompt has opened it
  kMaybe,  // if its first token is <think>
};

// The tags in a vocabulary. <think> opens a section only as one token. </think> is found in the text, so it may be
// several tokens.
// Thread: immutable; any threads at once.
class ThinkingTags {
 public:
  // The tokenizer must outlive this.
  explicit ThinkingTags(const Tokenizer& tokenizer);

  [[nodiscard]] std::optional<TokenId> start() const { return start_; }
  // Whether the vocabulary spells </think> from any place inside the tag, so that a section can be ended.
  [[nodiscard]] bool can_close() const;

 private:
  friend class ThinkingWatch;

  const Tokenizer& tokenizer_;
  std::optional<TokenId> start_;
  // By the number of bytes of </think> already matched: the tokens that complete it and then add more than white space.
  std::array<std::vector<TokenId>, kEndThinkTag.size()> overruns_;
  // By the same number: the tokens that go on with </think> and add nothing else. Only the token </think> if there is one.
  std::array<std::vector<TokenId>, kEndThinkTag.size()> closers_;
};

inline constexpr int64_t kNoThinkingBudget = std::numeric_limits<int64_t>::max();

// Follows one text, token by token, to the end of its reasoning section.
class ThinkingWatch {
 public:
  ThinkingWatch() = default;  // for a text without a reasoning section
  // tags: must outlive this. budget: tokens between the tags, >= 0, after which the section must end. It has no effect
  // if the tags cannot close a section.
  ThinkingWatch(const ThinkingTags& tags, Thinking thinking, int64_t budget = kNoThinkingBudget);

  // Takes the next token if it belongs to the section or its tags. False: the token comes after them.
  bool take(TokenId token);

  [[nodiscard]] bool is_inside() const { return at_ == At::kInside; }
  // Inside the section: the tokens that must not come next because they go past the end tag. So the section ends at a
  // token boundary.
  [[nodiscard]] std::span<const TokenId> forbidden() const;
  // Inside a section whose budget is spent: the only tokens that may come next. They end it. Else empty.
  [[nodiscard]] std::span<const TokenId> closing() const;
  // The token that may open the section now. Other tokens begin a text without a section.
  [[nodiscard]] std::optional<TokenId> opening() const;

 private:
  enum class At : uint8_t { kStart, kInside, kBehind };

  const ThinkingTags* tags_ = nullptr;
  At at_ = At::kBehind;
  std::size_t matched_ = 0;  // bytes of </think> that the text ends with
  int64_t left_ = kNoThinkingBudget;
};

}  // namespace warprow
