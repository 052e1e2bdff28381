// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "server/chat/chat_parser.h"
#include "server/response/answer_writer.h"

#include <cstdint>
#include <memory>

#include <nlohmann/json.hpp>

namespace warprow {

// The writers of the endpoints that generate; each stands in <endpoint>_writer.cpp.

std::unique_ptr<AnswerWriter> make_completions_writer(AnswerInfo info,
                                                      TokenBytes token_bytes,
                                                      AnswerShape shape);

// make_parser: makes a parser for each choice; null if all text is content.
std::unique_ptr<AnswerWriter> make_chat_writer(AnswerInfo info,
                                               TokenBytes token_bytes,
                                               AnswerShape shape,
                                               const MakeChatParser& make_parser);

// echoed: members of the response that repeat the request. The answer has one choice.
std::unique_ptr<AnswerWriter> make_responses_writer(AnswerInfo info,
                                                    nlohmann::ordered_json echoed,
                                                    const MakeChatParser& make_parser);

// Messages of Anthropic's API. num_input_tokens: of the prompt. The answer has one choice.
std::unique_ptr<AnswerWriter> make_messages_writer(AnswerInfo info,
                                                   int64_t num_input_tokens,
                                                   const MakeChatParser& make_parser);

}  // namespace warprow
