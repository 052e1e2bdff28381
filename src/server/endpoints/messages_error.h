// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "server/http_message.h"
#include "server/response/api_error.h"

#include <string>

namespace warprow {

// Errors in the format of Anthropic's API: {"type": "error", "error": {"type", "message"}}. The type follows from the
// HTTP status. `param`, OpenAI's name of the field at fault, stays.
std::string messages_error_json(const ApiError& error);

// A reply with an error in OpenAI's format, in this one. Other replies stay as they are.
HttpReply as_messages_reply(HttpReply reply);

}  // namespace warprow
