// SPDX-License-Identifier: Apache-2.0
#include "server/api.h"

#include "base/log.h"
#include "server/api_error.h"
#include "text/text_model.h"

#include <algorithm>
#include <ctime>
#include <exception>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using Json = nlohmann::ordered_json;

struct Route {
  const char* method;
  const char* path;
};

constexpr Route kRoutes[] = {
    {"GET", "/health"},
    {"GET", "/ping"},
    {"POST", "/ping"},
    {"GET", "/version"},
    {"GET", "/v1/models"},
    {"POST", "/v1/completions"},
    {"POST", "/v1/chat/completions"},
};

// Methods that the path has, for Allow; "" for an unknown path.
std::string methods_of(std::string_view path) {
  std::string out;
  for (const Route& route : kRoutes) {
    if (path == route.path) {
      out += (out.empty() ? "" : ", ") + std::string(route.method);
    }
  }
  return out;
}

bool has_method(std::string_view method, std::string_view path) {
  return std::any_of(std::begin(kRoutes), std::end(kRoutes), [&](const Route& route) {
    return method == route.method && path == route.path;
  });
}

// Takes the same time wherever the difference is.
bool same_secret(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() == secret.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i]) ^
                  static_cast<unsigned char>(secret[i % std::max<size_t>(secret.size(), 1)]);
  }
  return difference == 0;
}

// Names come from the client: nothing of them may end a header or grow it without bound.
std::string header_value(const std::vector<std::string>& names) {
  constexpr size_t kLongest = 512;
  std::string out;
  for (const std::string& name : names) {
    out += (out.empty() ? "" : ", ") + name;
  }
  for (char& c : out) {
    c = c >= ' ' && c <= '~' ? c : '?';
  }
  return out.size() > kLongest ? out.substr(0, kLongest) + "..." : out;
}

}  // namespace

Api::Api(Engine& engine, ApiOptions options)
    : engine_(engine),
      options_(std::move(options)),
      started_(std::time(nullptr)),
      random_(std::random_device{}()) {}

Api::Answer Api::handle(const HttpRequest& request, std::function<void()> wake) noexcept {
  try {
    return route(request, std::move(wake));
  } catch (const std::exception& error) {
    WR_LOG_ERROR("{} {}: {}", request.method, request.path, error.what());
    return error_reply(ApiError{500, "internal_error", "an error inside the server; see its log"});
  }
}

Api::Answer Api::route(const HttpRequest& request, std::function<void()> wake) {
  const std::string& path = request.path;
  const std::string methods = methods_of(path);
  if (methods.empty()) {
    return error_reply({404, "not_found_error", fmt::format("there is no {}", path)});
  }
  const bool guarded = path.starts_with("/v1/") && !options_.api_key.empty();
  if (guarded && !same_secret(request.authorization, "Bearer " + options_.api_key)) {
    HttpReply reply = error_reply({401, "authentication_error", "a valid API key is needed"});
    reply.headers.emplace_back("WWW-Authenticate", "Bearer");
    return reply;
  }
  if (!has_method(request.method, path)) {
    HttpReply reply =
        error_reply({405,
                     "invalid_request_error",
                     fmt::format("{} takes {}, not {}", path, methods, request.method)});
    reply.headers.emplace_back("Allow", methods);
    return reply;
  }
  if (path == "/v1/completions") {
    return generate(Endpoint::kCompletions, request, std::move(wake));
  }
  if (path == "/v1/chat/completions") {
    return generate(Endpoint::kChat, request, std::move(wake));
  }
  if (path == "/v1/models") {
    return list_models();
  }
  if (path == "/version") {
    return HttpReply{.body = Json{{"version", options_.version}}.dump()};
  }
  return HttpReply{.content_type = ""};  // /health and /ping, with an empty body as in vLLM
}

HttpReply Api::list_models() const {
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
  return {.body = out.dump(-1, ' ', false, Json::error_handler_t::replace)};
}

bool Api::is_served(const std::string& model) const {
  const std::vector<std::string>& names = options_.model_names;
  return model.empty() || std::find(names.begin(), names.end(), model) != names.end();
}

Api::Answer Api::generate(Endpoint endpoint,
                          const HttpRequest& request,
                          std::function<void()> wake) {
  const Result<GenerationBody> body = parse_generation_body(endpoint, request.body);
  if (!body) {
    return error_reply(api_error(body.error()));
  }
  if (!is_served(body->model)) {
    return error_reply({404,
                        "not_found_error",
                        fmt::format("model: '{}' is not served here, but {} is",
                                    body->model,
                                    fmt::join(options_.model_names, ", ")),
                        "model"});
  }
  const Result<ValidRequest> valid = engine_.validate(body->request);
  if (!valid) {
    return error_reply(api_error(valid.error()));
  }
  const Tokenizer& tokenizer = engine_.text().tokenizer;
  std::unique_ptr<AnswerWriter> writer = make_answer_writer(
      endpoint,
      answer_info(endpoint),
      [&tokenizer](TokenId id) { return tokenizer.token_bytes(id); },
      static_cast<size_t>(valid->fields().num_choices));
  return std::make_unique<Generation>(engine_,
                                      *valid,
                                      std::move(writer),
                                      Generation::Form{.stream = body->stream,
                                                       .include_usage = body->include_usage,
                                                       .headers = report_ignored(body->ignored)},
                                      std::move(wake));
}

HttpHeaders Api::report_ignored(const std::vector<std::string>& names) {
  constexpr size_t kMostLogged = 256;
  for (const std::string& name : names) {
    if (logged_.size() < kMostLogged && logged_.insert(name).second) {
      WR_LOG_WARN("requests bring a field that is not known and is ignored: {}",
                  header_value({name}));
    }
  }
  if (names.empty()) {
    return {};
  }
  return {{"X-Ignored-Params", header_value(names)}};
}

AnswerInfo Api::answer_info(Endpoint endpoint) {
  const char* prefix = endpoint == Endpoint::kChat ? "chatcmpl" : "cmpl";
  return {.id = fmt::format("{}-{:016x}{:016x}", prefix, random_(), random_()),
          .model = options_.model_names.front(),
          .created = std::time(nullptr)};
}

}  // namespace warprow
