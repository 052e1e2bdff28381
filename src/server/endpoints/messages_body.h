// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <string_view>

#include <nlohmann/json.hpp>

namespace warprow {

// Translates the body of POST /v1/messages (Anthropic's Messages API) into the body of a chat completion, for
// read_chat_body. Sampling fields keep their names; stop_sequences becomes stop. The text blocks of a message stay
// together; each tool_result block becomes a message of its own in front of the user's text. If the assistant wrote
// the last message, the answer continues it.
//
// for_count: the body of /v1/messages/count_tokens, which needs no max_tokens.
//
// kInvalidArgument names the field and what it must be. kUnsupported: images, documents, tools that a server would have
// to run, and fields of chats that this API does not have. Unknown fields stay in the chat, where they are reported as
// ignored. metadata and cache_control change nothing and are dropped: prefixes are cached anyway.
Result<nlohmann::ordered_json> parse_messages_body(std::string_view body, bool for_count);

}  // namespace warprow
