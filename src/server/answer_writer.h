// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"
#include "engine/engine.h"
#include "server/api_error.h"
#include "server/generation_body.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace warprow {

// What stands on every object of one answer.
struct AnswerInfo {
  std::string id;
  std::string model;
  int64_t created = 0;  // seconds since 1970
};

// The bytes of a token, as Tokenizer::token_bytes.
using TokenBytes = std::function<std::string_view(TokenId)>;

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
};

// `num_choices` is the request's n.
std::unique_ptr<AnswerWriter> make_answer_writer(Endpoint endpoint,
                                                 AnswerInfo info,
                                                 TokenBytes token_bytes,
                                                 size_t num_choices);

// A stream that cannot go on ends with this.
std::string error_events(const ApiError& error);

}  // namespace warprow
