// SPDX-License-Identifier: Apache-2.0
#include "server/endpoints/messages_error.h"

#include "server/json_value.h"

#include <utility>

#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using Json = nlohmann::ordered_json;

const char* type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

std::string text_of_error(int status, const Json& message, const Json& param) {
  const Json out = {{"type", "error"},
                    {"error", {{"type", type_of(status)}, {"message", message}, {"param", param}}}};
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string messages_error_json(const ApiError& error) {
  return text_of_error(
      error.status, error.message, error.param.empty() ? Json(nullptr) : Json(error.param));
}

HttpReply as_messages_reply(HttpReply reply) {
  if (reply.status >= 400) {
    const Json error = member_of(Json::parse(reply.body, nullptr, false), "error");
    reply.body =
        text_of_error(reply.status, member_of(error, "message"), member_of(error, "param"));
  }
  return reply;
}

}  // namespace warprow
