// SPDX-License-Identifier: Apache-2.0
#include "cli/flags/server_flags.h"

#include "cli/visible_text.h"
#include "config/env.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {

ServerFlags::ServerFlags(FlagSet& flags) {
  const auto add =
      [&flags](const char* name, const char* value, const char* help, auto& target, bool common) {
        flags.add_text(
            {.name = name, .value = value, .group = "Server", .help = help, .common = common},
            target);
      };
  add("base-url",
      "URL",
      "the server, for instance http://127.0.0.1:8000 (or OPENAI_BASE_URL)",
      base_url_,
      true);
  add("host", "ADDRESS", "the server's address [127.0.0.1]", host_, true);
  add("port", "N", "the server's port [8000]", port_, true);
  add("api-key", "KEY", "sent as Authorization: Bearer KEY (or OPENAI_API_KEY)", api_key_, false);
  add_ca_flag(flags, ca_file_);
}

Result<void> no_more_arguments(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    return {};
  }
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("unexpected argument '{}'; the server is given with --base-url",
                          arguments.front()));
}

void add_ca_flag(FlagSet& flags, std::optional<std::string>& ca_file) {
  flags.add_text({.name = "ssl-ca-certs",
                  .value = "PATH",
                  .group = "Server",
                  .help = "PEM file with the CAs that may sign an https server's certificate [the "
                          "system's store, or SSL_CERT_FILE]",
                  .common = false},
                 ca_file);
}

Result<HttpOrigin> ServerFlags::origin() const {
  if (base_url_) {
    return parse_origin(*base_url_);
  }
  if (host_ || port_) {
    const HttpOrigin local;
    const std::string host = host_.value_or(local.host);
    const bool is_v6 = host.find(':') != std::string::npos && host.front() != '[';
    return parse_origin(
        fmt::format("{}:{}", is_v6 ? "[" + host + "]" : host, port_.value_or(local.port)));
  }
  if (const std::optional<std::string> url = environment("OPENAI_BASE_URL")) {
    return parse_origin(*url);
  }
  return HttpOrigin{};
}

Result<std::unique_ptr<HttpClient>> ServerFlags::connect(std::chrono::seconds silence) const {
  return origin().map(
      [&](const HttpOrigin& where) { return connect_to(where, api_key_, ca_file_, silence); });
}

std::unique_ptr<HttpClient> connect_to(const HttpOrigin& origin,
                                       const std::optional<std::string>& api_key,
                                       const std::optional<std::string>& ca_file,
                                       std::chrono::seconds silence) {
  std::vector<std::pair<std::string, std::string>> headers;
  if (const auto key = api_key ? api_key : environment("OPENAI_API_KEY")) {
    headers.emplace_back("Authorization", "Bearer " + *key);
  }
  return std::make_unique<HttpClient>(
      origin, std::move(headers), HttpClient::Limits{.silence = silence}, ca_file.value_or(""));
}

std::string refusal_text(const HttpAnswer& answer) {
  constexpr size_t kLongest = 200;
  const auto json = nlohmann::json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
  std::string text = answer.body;
  if (json.is_object()) {
    const nlohmann::json error = json.value("error", json.value("detail", nlohmann::json()));
    if (error.is_string()) {
      text = error.get<std::string>();
    } else if (error.is_object() && error.contains("message") && error["message"].is_string()) {
      text = error["message"].get<std::string>();
    }
  }
  text.resize(std::min(text.size(), kLongest));
  text = visible_text(text);
  return answer.status == 200 ? text : fmt::format("{}: {}", answer.status, text);
}

Result<std::string> first_model(HttpClient& client) {
  const Result<HttpAnswer> answer = client.ask({.path = "/v1/models"});
  if (!answer) {
    return tl::unexpected(answer.error());
  }
  if (answer->status != 200) {
    return fail(ErrorCode::kInvalidArgument, "/v1/models: " + refusal_text(*answer));
  }
  const auto json = nlohmann::json::parse(answer->body, nullptr, /*allow_exceptions=*/false);
  const auto id = nlohmann::json::json_pointer("/data/0/id");
  if (!json.is_object() || !json.contains(id) || !json[id].is_string()) {
    return fail(ErrorCode::kInvalidArgument, "/v1/models names no model: give --model");
  }
  return json[id].get<std::string>();
}

}  // namespace warprow
