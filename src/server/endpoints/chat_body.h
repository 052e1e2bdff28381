// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "server/endpoints/generation_body.h"
#include "server/json_value.h"

#include <string>
#include <string_view>
#include <vector>

namespace warprow {

// The body of POST /v1/chat/completions; see read_generation_fields.
Result<GenerationBody> parse_chat_body(std::string_view text);
// The same for a parsed body. text: what it was parsed from, or empty.
Result<GenerationBody> read_chat_body(const OrderedJson& root, std::string_view text);

// Reads the messages for a chat template: roles are texts; contents are texts or lists of text parts; a null content
// becomes ""; tool calls have names and arguments. Unknown members are dropped and named in `ignored`.
Result<OrderedJson> read_messages(const std::string& field,
                                  const OrderedJson& value,
                                  std::vector<std::string>& ignored);

// Checks the arguments of a tool call: text, an object or null. The template gets an object parsed from the text, so
// the text is checked like a body. `shape` accumulates over all such texts of a request.
Result<void> check_arguments(const std::string& field, const OrderedJson& value, JsonShape& shape);

// Reads a list of {"type": "function", "function": {"name", "description", "parameters"}}; null for an empty list.
Result<OrderedJson> read_tools(const char* field, const OrderedJson& value);

}  // namespace warprow
