// SPDX-License-Identifier: Apache-2.0
#include "server/api.h"

#include "base/log.h"
#include "server/api_error.h"

#include <algorithm>
#include <ctime>
#include <exception>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace warprow {

struct Api::Route {
  const char* method;
  const char* path;
  Answer (Api::*handle)(const HttpRequest& request, const Wake& wake);
  bool quick = false;
  bool dev = false;  // only with dev_endpoints
};

namespace {

// Takes the same time wherever the difference is.
bool same_secret(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() == secret.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i]) ^
                  static_cast<unsigned char>(secret[i % std::max<size_t>(secret.size(), 1)]);
  }
  return difference == 0;
}

// What follows the scheme, whose case does not count (RFC 9110); empty without one.
std::string_view bearer_token(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  const bool is_bearer =
      authorization.size() > kScheme.size() &&
      std::equal(kScheme.begin(), kScheme.end(), authorization.begin(), [](char ours, char given) {
        return ours == (given >= 'A' && given <= 'Z' ? given - 'A' + 'a' : given);
      });
  if (!is_bearer) {
    return {};
  }
  const std::string_view rest = authorization.substr(kScheme.size());
  return rest.substr(std::min(rest.find_first_not_of(' '), rest.size()));
}

// HEAD is GET without the body, which the connection leaves out.
std::string_view method_of(const HttpRequest& request) {
  return request.method == "HEAD" ? std::string_view("GET") : request.method;
}

}  // namespace

// clang-format off
std::span<const Api::Route> Api::routes() {
  static constexpr Route kRoutes[] = {
      {.method = "GET", .path = "/", .handle = &Api::page, .quick = true},
      {.method = "GET", .path = "/openapi.json", .handle = &Api::openapi, .quick = true},
      {.method = "GET", .path = "/health", .handle = &Api::health, .quick = true},
      {.method = "GET", .path = "/ping", .handle = &Api::health, .quick = true},
      {.method = "POST", .path = "/ping", .handle = &Api::health, .quick = true},
      {.method = "GET", .path = "/livez", .handle = &Api::live, .quick = true},
      {.method = "GET", .path = "/readyz", .handle = &Api::ready, .quick = true},
      {.method = "GET", .path = "/version", .handle = &Api::version, .quick = true},
      {.method = "GET", .path = "/metrics", .handle = &Api::metrics},
      {.method = "GET", .path = "/trace", .handle = &Api::trace},
      {.method = "GET", .path = "/v1/models", .handle = &Api::models, .quick = true},
      {.method = "GET", .path = "/v1/engine/state", .handle = &Api::engine_state},
      {.method = "POST", .path = "/v1/completions", .handle = &Api::completions},
      {.method = "POST", .path = "/v1/chat/completions", .handle = &Api::chat_completions},
      {.method = "POST", .path = "/v1/responses", .handle = &Api::responses},
      {.method = "POST", .path = "/tokenize", .handle = &Api::tokenize},
      {.method = "POST", .path = "/detokenize", .handle = &Api::detokenize},
      {.method = "POST", .path = "/sleep", .handle = &Api::sleep, .dev = true},
      {.method = "POST", .path = "/wake_up", .handle = &Api::wake_up, .dev = true},
      {.method = "GET", .path = "/is_sleeping", .handle = &Api::is_sleeping, .quick = true, .dev = true},
      {.method = "POST", .path = "/reset_prefix_cache", .handle = &Api::reset_prefix_cache, .dev = true}};
  return kRoutes;
}
// clang-format on

Api::Api(Engine& engine, ServerWatch& watch, ApiOptions options)
    : engine_(engine), watch_(watch), options_(std::move(options)), started_(std::time(nullptr)) {}

bool Api::is_quick(const HttpRequest& request) {
  const auto all = routes();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Route& route) {
    return request.path == route.path && method_of(request) == route.method;
  });
  return found == all.end() || found->quick;
}

std::string Api::known_path(const std::string& path) {
  const auto all = routes();
  const bool known =
      std::any_of(all.begin(), all.end(), [&](const Route& route) { return path == route.path; });
  return known ? path : "other";
}

Api::Answer Api::handle(const HttpRequest& request, const Wake& wake) noexcept {
  try {
    return route(request, wake);
  } catch (const std::exception& error) {
    WR_LOG_ERROR("{} {}: {}", request.method, request.path, error.what());
    return error_reply({500, "internal_error", "an error inside the server; see its log"});
  }
}

bool Api::may_pass(const HttpRequest& request) const {
  if (options_.api_keys.empty() || !request.path.starts_with("/v1/")) {
    return true;
  }
  const std::string_view given = bearer_token(request.authorization);
  bool passes = false;  // all keys are compared, so that time tells nothing
  for (const std::string& key : options_.api_keys) {
    passes = same_secret(given, key) || passes;
  }
  return passes;
}

Api::Answer Api::route(const HttpRequest& request, const Wake& wake) {
  const Route* chosen = nullptr;
  std::string methods;
  for (const Route& route : routes()) {
    if (request.path == route.path && (!route.dev || options_.dev_endpoints)) {
      methods += (methods.empty() ? "" : ", ") + std::string(route.method);
      chosen = method_of(request) == route.method ? &route : chosen;
    }
  }
  if (methods.empty()) {
    return error_reply({404, "not_found_error", fmt::format("there is no {}", request.path)});
  }
  if (request.method == "OPTIONS") {  // without a key: browsers' preflights bring none
    return HttpReply{.status = 204, .content_type = "", .headers = {{"Allow", methods}}};
  }
  if (!may_pass(request)) {
    HttpReply reply = error_reply({401, "authentication_error", "a valid API key is needed"});
    reply.headers.emplace_back("WWW-Authenticate", "Bearer");
    return reply;
  }
  if (chosen == nullptr) {
    HttpReply reply =
        error_reply({405,
                     "invalid_request_error",
                     fmt::format("{} takes {}, not {}", request.path, methods, request.method)});
    reply.headers.emplace_back("Allow", methods);
    return reply;
  }
  return (this->*chosen->handle)(request, wake);
}

}  // namespace warprow
