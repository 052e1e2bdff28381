// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "server/http_message.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace warprow {

// An error as OpenAI's clients read it: {"error": {"message", "type", "param", "code"}}, where code is
// the HTTP status as in vLLM.
struct ApiError {
  int status = 400;
  const char* type = "invalid_request_error";
  std::string message;
  std::string param{};  // the field at fault; empty: null
  // A prompt that is too long: its tokens and the most there may be, as llama.cpp's two fields.
  std::optional<std::pair<int64_t, int64_t>> context{};
  int retry_after_s = 0;  // 0: no such header
};

// A refused request is the client's to change, so also what is not supported in it gets 400: clients
// repeat requests that end with 5xx. The field is the one that the message names first.
ApiError api_error(const Error& error);

std::string error_json(const ApiError& error);
HttpReply error_reply(const ApiError& error);
// 503 for what another try may find free: `what` is too much just now.
HttpReply overload_reply(const std::string& what);

}  // namespace warprow
