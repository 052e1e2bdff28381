// SPDX-License-Identifier: Apache-2.0
// Endpoints about the server and its engine.
#include "server/api.h"
#include "server/api_error.h"
#include "server/web_page.h"
#include "server/write/answer_json.h"

#include <charconv>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using Json = nlohmann::ordered_json;

// An empty 200 as in vLLM, or a 503 with the cause.
HttpReply probe_reply(std::string trouble) {
  if (trouble.empty()) {
    return {.content_type = ""};
  }
  return error_reply({503, "service_unavailable", std::move(trouble)});
}

HttpReply call_reply(const Result<std::vector<std::string>>& result) {
  if (!result) {
    return error_reply(api_error(result.error()));
  }
  return {.content_type = ""};
}

}  // namespace

Api::Answer Api::page(const HttpRequest& /*request*/, const Wake& /*wake*/) { return web_page(); }

Api::Answer Api::openapi(const HttpRequest& /*request*/, const Wake& /*wake*/) {
  return openapi_description();
}

Api::Answer Api::models(const HttpRequest& /*request*/, const Wake& /*wake*/) {
  Json data = Json::array();
  for (const std::string& name : options_.model_names) {
    Json card;
    card["id"] = name;
    card["object"] = "model";
    card["created"] = started_;
    card["owned_by"] = "warprow";
    card["root"] = options_.model_names.front();
    card["parent"] = nullptr;
    card["max_model_len"] = engine_.model_facts().max_model_len;
    card["permission"] = Json::array();
    data.push_back(std::move(card));
  }
  Json out;
  out["object"] = "list";
  out["data"] = std::move(data);
  return HttpReply{.body = json_text(out)};
}

Api::Answer Api::version(const HttpRequest& /*request*/, const Wake& /*wake*/) {
  return HttpReply{.body = Json{{"version", options_.version}}.dump()};
}

Api::Answer Api::live(const HttpRequest& /*request*/, const Wake& /*wake*/) {
  return probe_reply(engine_trouble(engine_.progress(), options_.stall_seconds));
}

Api::Answer Api::health(const HttpRequest& request, const Wake& wake) {
  return live(request, wake);
}

Api::Answer Api::ready(const HttpRequest& request, const Wake& wake) {
  if (watch_.draining) {
    return probe_reply("the server is shutting down");
  }
  if (engine_.is_sleeping()) {
    return probe_reply("the engine sleeps");
  }
  return live(request, wake);
}

Api::Answer Api::metrics(const HttpRequest& /*request*/, const Wake& /*wake*/) {
  return HttpReply{.body = watch_.metrics.text(engine_, options_.model_names.front()),
                   .content_type = "text/plain; version=0.0.4; charset=utf-8"};
}

Api::Answer Api::engine_state(const HttpRequest& /*request*/, const Wake& /*wake*/) {
  return HttpReply{.body = engine_state_json(engine_,
                                             watch_,
                                             {options_.model_names.front(), options_.version},
                                             options_.stall_seconds)};
}

Api::Answer Api::trace(const HttpRequest& request, const Wake& /*wake*/) {
  constexpr double kLongest = 3600;
  const std::string text = query_value(request.query, "seconds").value_or("10");
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc() || end != text.data() + text.size() || !(seconds > 0) ||
      seconds > kLongest) {
    return error_reply({400,
                        "invalid_request_error",
                        fmt::format("seconds: '{}' is outside (0, {}]", text, kLongest),
                        "seconds"});
  }
  return HttpReply{.body = trace_json(engine_, watch_, seconds)};
}

Api::Answer Api::sleep(const HttpRequest& request, const Wake& /*wake*/) {
  const std::string text = query_value(request.query, "level").value_or("1");
  if (text != "1" && text != "2") {
    return error_reply({400,
                        "invalid_request_error",
                        fmt::format("level: '{}' is neither 1 nor 2", text),
                        "level"});
  }
  return call_reply(engine_.sleep(text == "1" ? 1 : 2));
}

Api::Answer Api::wake_up(const HttpRequest& request, const Wake& /*wake*/) {
  return call_reply(engine_.wake_up(query_values(request.query, "tags")));
}

Api::Answer Api::is_sleeping(const HttpRequest& /*request*/, const Wake& /*wake*/) {
  return HttpReply{.body = Json{{"is_sleeping", engine_.is_sleeping()}}.dump()};
}

Api::Answer Api::reset_prefix_cache(const HttpRequest& /*request*/, const Wake& /*wake*/) {
  if (const Result<void> done = engine_.reset_prefix_cache(); !done) {
    ApiError error = api_error(done.error());
    error.status = error.status == 400 ? 409 : error.status;
    return error_reply(error);
  }
  return HttpReply{.content_type = ""};
}

}  // namespace warprow
