// SPDX-License-Identifier: Apache-2.0
#include "server/response/api_error.h"

#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using Json = nlohmann::ordered_json;

// The field that a message names: "top_p" for "top_p: 2 is outside (0, 1]", "messages[1].role" for
// "messages[1].role: must be text".
std::string named_field(std::string_view message) {
  const size_t end = message.find_first_not_of(
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.[]");
  const bool is_name = end != std::string_view::npos && end > 0 && message[end] == ':';
  return is_name ? std::string(message.substr(0, end)) : "";
}

}  // namespace

ApiError api_error(const Error& error) {
  switch (error.code) {
    case ErrorCode::kInvalidArgument:
      return {400, "invalid_request_error", error.message, named_field(error.message)};
    case ErrorCode::kUnsupported:
      return {400, "not_supported_error", error.message, named_field(error.message)};
    case ErrorCode::kNotFound:
      return {404, "not_found_error", error.message, named_field(error.message)};
    case ErrorCode::kBusy:
      return {.status = 503,
              .type = "service_unavailable",
              .message = error.message,
              .param = named_field(error.message),
              .retry_after_s = 1};
    case ErrorCode::kCorrupt:
    case ErrorCode::kOutOfMemory:
    case ErrorCode::kInternal:
      break;
  }
  return {500, "internal_error", error.message};
}

ApiError context_error(PromptExcess excess, std::string param) {
  return {.status = 400,
          .type = "context_length_exceeded",
          .message = std::move(excess.message),
          .param = std::move(param),
          .context = std::pair(excess.num_toks, excess.limit)};
}

std::string error_json(const ApiError& error) {
  Json body;
  body["message"] = error.message;
  body["type"] = error.type;
  body["param"] = error.param.empty() ? Json(nullptr) : Json(error.param);
  body["code"] = error.status;
  if (error.context) {
    body["n_prompt_tokens"] = error.context->first;
    body["n_ctx"] = error.context->second;
  }
  Json out;
  out["error"] = std::move(body);
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

HttpReply overload_reply(const std::string& what) {
  return error_reply({.status = 503,
                      .type = "service_unavailable",
                      .message = what + "; try again later",
                      .retry_after_s = 1});
}

HttpReply error_reply(const ApiError& error) {
  HttpReply reply{.status = error.status, .body = error_json(error)};
  if (error.retry_after_s > 0) {
    reply.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  }
  return reply;
}

}  // namespace warprow
