// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"
#include "engine/engine.h"
#include "server/api_error.h"
#include "server/chat/chat_parser.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace warprow {

// What stands on every object of one answer.
struct AnswerInfo {
  std::string id;
  std::string model;
  int64_t created = 0;  // seconds since 1970
};

// How many choices an answer has: those of the first prompt come first.
struct AnswerShape {
  size_t num_prompts = 1;
  size_t choices_per_prompt = 1;
  std::vector<std::string> echo{};  // by prompt: what its choices begin with; empty: nothing
  std::vector<std::vector<TokenId>>
      prompt_token_ids{};    // by prompt, shown with those of the answers
  bool only_prompt = false;  // what was generated is left out
  bool shows_prompt_logprobs = false;
  std::vector<TokenId> first_tokens{};  // by prompt

  [[nodiscard]] size_t num_choices() const { return num_prompts * choices_per_prompt; }
  [[nodiscard]] bool shows_token_ids() const { return !prompt_token_ids.empty(); }
};

// The bytes by which answers name a token: its own, as Tokenizer::token_bytes has them, or its number.
using TokenBytes = std::function<std::string(TokenId)>;

// Updates of an answer's choices as the JSON of an endpoint, whole or as server-sent events.
//
// Thread: one. An updates' span is indexed by choice.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  // The complete answer.
  virtual std::string whole(std::span<const RequestUpdate> choices) = 0;
  // What is new in a choice, perhaps nothing.
  virtual std::string events(size_t choice, const RequestUpdate& update) = 0;
  // What ends a stream; usage is an event of its own, without choices.
  virtual std::string last_events(std::span<const RequestUpdate> choices, bool with_usage) = 0;
  // What ends a stream that cannot go on.
  virtual std::string error_events(const ApiError& error);
};

std::unique_ptr<AnswerWriter> make_completion_writer(AnswerInfo info,
                                                     TokenBytes token_bytes,
                                                     AnswerShape shape);

// make_parser: for each choice; null where all text is content.
std::unique_ptr<AnswerWriter> make_chat_writer(AnswerInfo info,
                                               TokenBytes token_bytes,
                                               AnswerShape shape,
                                               const MakeChatParser& make_parser);

// echoed: members of the object that repeat the request. Has one choice.
std::unique_ptr<AnswerWriter> make_responses_writer(AnswerInfo info,
                                                    nlohmann::ordered_json echoed,
                                                    const MakeChatParser& make_parser);

}  // namespace warprow
