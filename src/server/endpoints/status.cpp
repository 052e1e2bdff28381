// SPDX-License-Identifier: Apache-2.0
// Endpoints about the server and its engine.
#include "server/api_keys.h"
#include "server/endpoints/endpoints.h"
#include "server/metrics/explanation.h"
#include "server/response/answer_json.h"
#include "server/response/api_error.h"
#include "server/web/web_page.h"

#include <charconv>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
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

// adapter: null for the model itself.
Json model_card(const Served& served, const std::string& name, const LoadedAdapter* adapter) {
  Json card;
  card["id"] = name;
  card["object"] = "model";
  card["created"] = adapter == nullptr ? served.started : static_cast<int64_t>(adapter->loaded_at);
  card["owned_by"] = "warprow";
  card["root"] = adapter == nullptr ? served.options.model_names.front() : adapter->path;
  card["parent"] = adapter == nullptr ? Json(nullptr) : Json(served.options.model_names.front());
  card["max_model_len"] = served.engine.model_facts().max_model_len;
  card["permission"] = Json::array();
  return card;
}

// A time of up to an hour from the query. The error names the field.
Result<EngineClock::duration> read_seconds(const HttpRequest& request,
                                           const char* field,
                                           const char* otherwise) {
  constexpr double kLongest = 3600;
  const std::string text = query_value(request.query, field).value_or(otherwise);
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc() || end != text.data() + text.size() || !(seconds > 0) ||
      seconds > kLongest) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: '{}' is outside (0, {}]", field, text, kLongest));
  }
  return std::chrono::duration_cast<EngineClock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

ApiAnswer answer_page(Served& /*served*/, const HttpRequest& /*request*/, const Wake& /*wake*/) {
  return web_page();
}

ApiAnswer answer_docs(Served& /*served*/, const HttpRequest& /*request*/, const Wake& /*wake*/) {
  return docs_page();
}

ApiAnswer answer_dashboard(Served& /*served*/,
                           const HttpRequest& /*request*/,
                           const Wake& /*wake*/) {
  return dashboard_page();
}

ApiAnswer answer_openapi(Served& /*served*/, const HttpRequest& /*request*/, const Wake& /*wake*/) {
  return openapi_description();
}

ApiAnswer answer_models(Served& served, const HttpRequest& /*request*/, const Wake& /*wake*/) {
  Json data = Json::array();
  for (const std::string& name : served.options.model_names) {
    data.push_back(model_card(served, name, nullptr));
  }
  for (const LoadedAdapter& adapter : served.engine.adapters()) {
    data.push_back(model_card(served, adapter.name, &adapter));
  }
  Json out;
  out["object"] = "list";
  out["data"] = std::move(data);
  return HttpReply{.body = json_text(out)};
}

// Names of the hub have a slash, which clients may send as it is.
ApiAnswer answer_model(Served& served, const HttpRequest& request, const Wake& /*wake*/) {
  const std::string name = percent_decoded(
      std::string_view(request.path).substr(std::string_view("/v1/models/").size()));
  if (const auto headers = served.names.check(name, {}); !headers) {
    return error_reply(headers.error());
  }
  const std::optional<LoadedAdapter> adapter = served.names.adapter(name);
  return HttpReply{.body = json_text(model_card(served, name, adapter ? &*adapter : nullptr))};
}

ApiAnswer answer_version(Served& served, const HttpRequest& /*request*/, const Wake& /*wake*/) {
  return HttpReply{.body = Json{{"version", served.options.version}}.dump()};
}

ApiAnswer answer_live(Served& served, const HttpRequest& /*request*/, const Wake& /*wake*/) {
  return probe_reply(engine_trouble(served.engine.progress(), served.options.stall_seconds));
}

ApiAnswer answer_ready(Served& served, const HttpRequest& request, const Wake& wake) {
  if (served.watch.draining) {
    return probe_reply("the server is shutting down");
  }
  if (served.engine.is_sleeping() || served.engine.is_paused()) {
    return probe_reply(served.engine.is_sleeping() ? "the engine sleeps" : "the engine is paused");
  }
  return answer_live(served, request, wake);
}

ApiAnswer answer_metrics(Served& served, const HttpRequest& /*request*/, const Wake& /*wake*/) {
  return HttpReply{
      .body = served.watch.metrics.text(served.engine, served.options.model_names.front()),
      .content_type = "text/plain; version=0.0.4; charset=utf-8"};
}

ApiAnswer answer_engine_state(Served& served, const HttpRequest& request, const Wake& /*wake*/) {
  std::optional<EngineClock::time_point> ended;
  if (query_value(request.query, "ended_s")) {
    const Result<EngineClock::duration> span = read_seconds(request, "ended_s", "0");
    if (!span) {
      return error_reply({400, "invalid_request_error", span.error().message, "ended_s"});
    }
    ended = EngineClock::now() - *span;
  }
  return HttpReply{
      .body = engine_state_json(served.engine,
                                served.watch,
                                {served.options.model_names.front(), served.options.version},
                                served.options.stall_seconds,
                                ended)};
}

std::string owner_of(const Served& served, const HttpRequest& request) {
  const bool needs_key = !served.options.api_keys.empty() || !served.options.key_files.empty();
  return needs_key ? std::string(bearer_token(request.authorization)) : "";
}

// The same answer for an id that is unknown and one of another key.
ApiAnswer answer_explanation(Served& served, const HttpRequest& request, const Wake& /*wake*/) {
  constexpr std::string_view kPath = "/v1/requests/";
  const std::string id = percent_decoded(std::string_view(request.path).substr(kPath.size()));
  const std::string steps = query_value(request.query, "steps").value_or("false");
  if (steps != "true" && steps != "false") {
    return error_reply({400,
                        "invalid_request_error",
                        fmt::format("steps: '{}' is neither true nor false", steps),
                        "steps"});
  }
  const std::vector<ChoiceRecord> found = served.watch.journal.find(id, owner_of(served, request));
  if (found.empty()) {
    return error_reply(
        {404,
         "not_found_error",
         fmt::format(
             "no request '{}' of this key is among the newest {}", id, RequestLog::kCapacity),
         "id"});
  }
  return HttpReply{.body = explanation_json(served.engine, found, steps == "true")
                               .dump(-1, ' ', false, Json::error_handler_t::replace)};
}

ApiAnswer answer_trace(Served& served, const HttpRequest& request, const Wake& /*wake*/) {
  const Result<EngineClock::duration> span = read_seconds(request, "seconds", "10");
  if (!span) {
    return error_reply({400, "invalid_request_error", span.error().message, "seconds"});
  }
  return HttpReply{.body = trace_json(served.engine, served.watch, EngineClock::now() - *span)};
}

}  // namespace warprow
