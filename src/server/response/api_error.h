// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "engine/prompt_length.h"
#include "server/http_message.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace warprow {

// An error in OpenAI's format: {"error": {"message", "type", "param", "code"}}. code is the HTTP status, as in vLLM.
struct ApiError {
  int status = 400;
  const char* type = "invalid_request_error";
  std::string message;
  std::string param{};  // the field at fault; empty: null
  // For a prompt that is too long: its number of tokens and the limit, which llama.cpp reports in two fields.
  std::optional<std::pair<int64_t, int64_t>> context{};
  int retry_after_s = 0;  // the Retry-After header; 0: none
};

// An unsupported option gets 400 too: the client must change the request, and clients retry on 5xx. `param` is the
// field at the beginning of the message.
ApiError api_error(const Error& error);

// For a prompt that is too long. param: the field at fault.
ApiError context_error(PromptExcess excess, std::string param);

std::string error_json(const ApiError& error);
HttpReply error_reply(const ApiError& error);
// 503 with Retry-After: a later retry may succeed. `what` says which limit is reached.
HttpReply overload_reply(const std::string& what);

}  // namespace warprow
