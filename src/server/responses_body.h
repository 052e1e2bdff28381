// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace warprow {

// A body of POST /v1/responses: the options of a chat, and what its answer repeats of it.
struct ResponsesBody {
  std::string chat;               // the body of a chat completion
  nlohmann::ordered_json echoed;  // members of the answer: instructions, tools, temperature, ...
};

// Reads what responses say in another way than chats; sampling fields keep their names. Stateless:
// `store` is answered with false, and what needs a stored response is refused,
// as are fields of chats that have no place in a response.
Result<ResponsesBody> parse_responses_body(std::string_view body);

}  // namespace warprow
