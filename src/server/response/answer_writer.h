// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"
#include "engine/engine.h"
#include "server/response/api_error.h"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace warprow {

// The members that every object of one answer has.
struct AnswerInfo {
  std::string id;
  std::string model;
  int64_t created = 0;  // seconds since 1970
};

// The number of choices and the contents of an answer. The choices of the first prompt come first.
struct AnswerShape {
  size_t num_prompts = 1;
  size_t choices_per_prompt = 1;
  std::vector<std::string> echo{};  // by prompt: the text before its choices; empty: none
  // By prompt; shown with the token ids of the answers.
  std::vector<std::vector<TokenId>> prompt_token_ids{};
  bool only_prompt = false;  // leave the generated text out
  bool shows_prompt_logprobs = false;
  bool usage_in_chunks = false;         // the choice's usage so far, in each chunk of a stream
  std::vector<TokenId> first_tokens{};  // by prompt

  [[nodiscard]] size_t num_choices() const { return num_prompts * choices_per_prompt; }
  [[nodiscard]] bool shows_token_ids() const { return !prompt_token_ids.empty(); }
};

// The bytes that name a token in an answer: its Tokenizer::token_bytes, or its number.
using TokenBytes = std::function<std::string(TokenId)>;

// Writes the updates of an answer's choices as an endpoint's JSON, complete or as server-sent events.
//
// Thread: one. A span of updates is indexed by choice.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  // The complete answer.
  virtual std::string whole(std::span<const RequestUpdate> choices) = 0;
  // The events for an update of a choice; may be empty.
  virtual std::string events(size_t choice, const RequestUpdate& update) = 0;
  // The events that end a stream. The usage is an event of its own, without choices.
  virtual std::string last_events(std::span<const RequestUpdate> choices, bool with_usage) = 0;
  // The events that end a stream with an error.
  virtual std::string error_events(const ApiError& error);
};

}  // namespace warprow
