// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <string_view>

#include <nlohmann/json.hpp>

namespace warprow {

// The body of POST /v1/responses: the options of a chat, and the members that the response repeats.
struct ResponsesBody {
  nlohmann::ordered_json chat;    // the body of a chat completion, for read_chat_body
  nlohmann::ordered_json echoed;  // members of the answer: instructions, tools, temperature, ...
};

// Translates a responses body into a chat body; sampling fields keep their names. Stateless: the response has `store`
// false. Options that need a stored response are refused, and so are fields of chats that /v1/responses does not have.
Result<ResponsesBody> parse_responses_body(std::string_view body);

}  // namespace warprow
