// SPDX-License-Identifier: Apache-2.0
// Endpoints that command the engine, with --server-dev-mode.
#include "server/endpoints/endpoints.h"
#include "server/response/api_error.h"

#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

HttpReply call_reply(const Result<std::vector<std::string>>& result) {
  if (!result) {
    return error_reply(api_error(result.error()));
  }
  return {.content_type = ""};
}

}  // namespace

ApiAnswer answer_sleep(Served& served, const HttpRequest& request, const Wake& /*wake*/) {
  const std::string text = query_value(request.query, "level").value_or("1");
  if (text != "1" && text != "2") {
    return error_reply({400,
                        "invalid_request_error",
                        fmt::format("level: '{}' is neither 1 nor 2", text),
                        "level"});
  }
  return call_reply(served.engine.sleep(text == "1" ? 1 : 2));
}

ApiAnswer answer_wake_up(Served& served, const HttpRequest& request, const Wake& /*wake*/) {
  return call_reply(served.engine.wake_up(query_values(request.query, "tags")));
}

ApiAnswer answer_is_sleeping(Served& served, const HttpRequest& /*request*/, const Wake& /*wake*/) {
  return HttpReply{.body =
                       nlohmann::ordered_json{{"is_sleeping", served.engine.is_sleeping()}}.dump()};
}

ApiAnswer answer_reset_prefix_cache(Served& served,
                                    const HttpRequest& /*request*/,
                                    const Wake& /*wake*/) {
  if (const Result<void> done = served.engine.reset_prefix_cache(); !done) {
    ApiError error = api_error(done.error());
    error.status = error.status == 400 ? 409 : error.status;
    return error_reply(error);
  }
  return HttpReply{.content_type = ""};
}

}  // namespace warprow
