// SPDX-License-Identifier: Apache-2.0
#include "server/api.h"

#include "base/log.h"
#include "server/response/api_error.h"
#include "text/text_model.h"

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
  Endpoint* handle;
  Effort effort = Effort::kNone;
  bool dev = false;                   // only with dev_endpoints
  bool open = false;                  // needs no API key
  bool ApiOptions::* flag = nullptr;  // only if it is set

  [[nodiscard]] bool exists(const ApiOptions& options) const {
    return (!dev || options.dev_endpoints) && (flag == nullptr || options.*flag);
  }

  // A path that ends with {a name} stands for all paths with at least one character more.
  [[nodiscard]] bool matches(std::string_view given) const {
    const std::string_view ours = path;
    const size_t brace = ours.find('{');
    return brace == ours.npos ? given == ours
                              : given.size() > brace && given.starts_with(ours.substr(0, brace));
  }
};

namespace {

// HEAD is handled as GET; the connection leaves the body out.
std::string_view method_of(const HttpRequest& request) {
  return request.method == "HEAD" ? std::string_view("GET") : request.method;
}

}  // namespace

// clang-format off
std::span<const Api::Route> Api::routes() {
  static constexpr Route kRoutes[] = {
      {.method = "GET", .path = "/", .handle = &answer_page, .open = true},
      {.method = "GET", .path = "/docs", .handle = &answer_docs, .open = true},
      {.method = "GET", .path = "/dashboard", .handle = &answer_dashboard, .open = true},
      {.method = "GET", .path = "/openapi.json", .handle = &answer_openapi},
      {.method = "GET", .path = "/health", .handle = &answer_live, .open = true},
      {.method = "GET", .path = "/ping", .handle = &answer_live, .open = true},
      {.method = "POST", .path = "/ping", .handle = &answer_live, .open = true},
      {.method = "GET", .path = "/livez", .handle = &answer_live, .open = true},
      {.method = "GET", .path = "/readyz", .handle = &answer_ready, .open = true},
      {.method = "GET", .path = "/version", .handle = &answer_version},
      {.method = "GET", .path = "/metrics", .handle = &answer_metrics},
      {.method = "GET", .path = "/trace", .handle = &answer_trace, .effort = Effort::kReport},
      {.method = "GET", .path = "/v1/models", .handle = &answer_models},
      {.method = "GET", .path = "/v1/models/{model}", .handle = &answer_model},
      {.method = "GET", .path = "/v1/engine/state", .handle = &answer_engine_state, .effort = Effort::kReport},
      {.method = "GET", .path = "/v1/requests/{id}", .handle = &answer_explanation, .effort = Effort::kReport},
      {.method = "POST", .path = "/v1/completions", .handle = &answer_completions, .effort = Effort::kText},
      {.method = "POST", .path = "/v1/chat/completions", .handle = &answer_chat_completions, .effort = Effort::kText},
      {.method = "POST", .path = "/v1/completions/render", .handle = &answer_render_completions, .effort = Effort::kText},
      {.method = "POST", .path = "/v1/chat/completions/render", .handle = &answer_render_chat, .effort = Effort::kText},
      {.method = "POST", .path = "/v1/responses", .handle = &answer_responses, .effort = Effort::kText},
      {.method = "POST", .path = "/v1/messages", .handle = &answer_messages, .effort = Effort::kText},
      {.method = "POST", .path = "/v1/messages/count_tokens", .handle = &answer_count_tokens, .effort = Effort::kText},
      {.method = "POST", .path = "/v1/embeddings", .handle = &answer_embeddings, .effort = Effort::kText},
      {.method = "POST", .path = "/pooling", .handle = &answer_vectors, .effort = Effort::kText},
      {.method = "POST", .path = "/classify", .handle = &answer_classes, .effort = Effort::kText},
      {.method = "POST", .path = "/score", .handle = &answer_scores, .effort = Effort::kText},
      {.method = "POST", .path = "/v1/score", .handle = &answer_scores, .effort = Effort::kText},
      {.method = "POST", .path = "/rerank", .handle = &answer_rerank, .effort = Effort::kText},
      {.method = "POST", .path = "/v1/rerank", .handle = &answer_rerank, .effort = Effort::kText},
      {.method = "POST", .path = "/v2/rerank", .handle = &answer_rerank, .effort = Effort::kText},
      {.method = "POST", .path = "/v1/load_lora_adapter", .handle = &answer_load_adapter, .effort = Effort::kUpdate, .flag = &ApiOptions::lora_updates},
      {.method = "POST", .path = "/v1/unload_lora_adapter", .handle = &answer_unload_adapter, .effort = Effort::kUpdate, .flag = &ApiOptions::lora_updates},
      {.method = "POST", .path = "/tokenize", .handle = &answer_tokenize, .effort = Effort::kText},
      {.method = "POST", .path = "/detokenize", .handle = &answer_detokenize, .effort = Effort::kText},
      {.method = "GET", .path = "/tokenizer_info", .handle = &answer_tokenizer_info, .effort = Effort::kReport, .flag = &ApiOptions::tokenizer_info},
      {.method = "POST", .path = "/sleep", .handle = &answer_sleep, .effort = Effort::kCommand, .dev = true},
      {.method = "POST", .path = "/wake_up", .handle = &answer_wake_up, .effort = Effort::kCommand, .dev = true},
      {.method = "GET", .path = "/is_sleeping", .handle = &answer_is_sleeping, .dev = true},
      {.method = "POST", .path = "/reset_prefix_cache", .handle = &answer_reset_prefix_cache, .effort = Effort::kCommand, .dev = true},
      {.method = "GET", .path = "/server_info", .handle = &answer_server_info, .dev = true},
      {.method = "POST", .path = "/pause", .handle = &answer_pause, .effort = Effort::kCommand, .dev = true},
      {.method = "POST", .path = "/resume", .handle = &answer_resume, .effort = Effort::kCommand, .dev = true},
      {.method = "POST", .path = "/update_weights", .handle = &answer_update_weights, .effort = Effort::kUpdate, .dev = true},
      {.method = "GET", .path = "/is_paused", .handle = &answer_is_paused, .dev = true},
      {.method = "POST", .path = "/start_profile", .handle = &answer_start_profile, .effort = Effort::kCommand, .dev = true},
      {.method = "POST", .path = "/stop_profile", .handle = &answer_stop_profile, .effort = Effort::kCommand, .dev = true}};
  return kRoutes;
}
// clang-format on

Api::Api(Engine& engine, ServerWatch& watch, ApiOptions options)
    : served_{.engine = engine,
              .watch = watch,
              .options = options,
              .encoder = PromptEncoder(engine.text().tokenizer, engine.model_facts().max_model_len),
              .names = RequestNames(engine, served_.options),
              .started = std::time(nullptr),
              .profile = Profile(std::move(options.profile_dir))},
      keys_(served_.options.api_keys, served_.options.key_files) {}

const Api::Route* Api::find_route(const HttpRequest& request) {
  const auto all = routes();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Route& route) {
    return route.matches(request.path) && method_of(request) == route.method;
  });
  return found == all.end() ? nullptr : &*found;
}

Api::Effort Api::effort(const HttpRequest& head) {
  const Route* route = find_route(head);
  return route == nullptr ? Effort::kNone : route->effort;
}

std::string Api::known_path(const std::string& path) {
  const auto all = routes();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Route& route) { return route.matches(path); });
  return found == all.end() ? "other" : found->path;
}

Api::Answer Api::handle(const HttpRequest& request, const Wake& wake) noexcept {
  try {
    return route(request, wake);
  } catch (const std::exception& error) {
    WR_LOG_ERROR("{} {}: {}", request.method, request.path, error.what());
    return error_reply({500, "internal_error", "an error inside the server; see its log"});
  }
}

bool Api::has_key(const HttpRequest& request) const {
  return keys_.empty() || keys_.has(bearer_token(request.authorization));
}

std::optional<HttpReply> Api::judge(const HttpRequest& head) const {
  std::string methods;
  bool is_open = served_.options.metrics_without_key && head.path == "/metrics";
  for (const Route& route : routes()) {
    if (route.matches(head.path) && route.exists(served_.options)) {
      methods += (methods.empty() ? "" : ", ") + std::string(route.method);
      is_open = is_open || route.open;
    }
  }
  const bool is_options = head.method == "OPTIONS";  // a browser's preflight carries no key
  if (!is_open && !is_options && !has_key(head)) {
    HttpReply reply = error_reply({401, "authentication_error", "a valid API key is needed"});
    reply.headers.emplace_back("WWW-Authenticate", "Bearer");
    return reply;
  }
  if (methods.empty()) {
    return error_reply({404, "not_found_error", fmt::format("there is no {}", head.path)});
  }
  if (is_options) {
    return HttpReply{.status = 204, .content_type = "", .headers = {{"Allow", methods}}};
  }
  if (find_route(head) == nullptr) {
    HttpReply reply =
        error_reply({405,
                     "invalid_request_error",
                     fmt::format("{} takes {}, not {}", head.path, methods, head.method)});
    reply.headers.emplace_back("Allow", methods);
    return reply;
  }
  return std::nullopt;
}

Api::Answer Api::route(const HttpRequest& request, const Wake& wake) {
  if (std::optional<HttpReply> early = judge(request)) {
    return *std::move(early);
  }
  return find_route(request)->handle(served_, request, wake);
}

}  // namespace warprow
