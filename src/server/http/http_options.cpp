// SPDX-License-Identifier: Apache-2.0
#include "server/http/http_options.h"

#include <algorithm>
#include <ctime>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

// Makes a client's text safe for a log line: it must not end the line or control a terminal.
std::string plain(std::string text) {
  for (char& c : text) {
    c = c > ' ' && c <= '~' ? c : '?';
  }
  return text;
}

// Checks a preflight's list of header names, which is copied into a response header: it must not end that header.
bool is_list_of_names(std::string_view text) {
  constexpr size_t kLongest = 2048;
  return !text.empty() && text.size() <= kLongest &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                  std::string_view("-_, ").find(c) != std::string_view::npos;
         });
}

}  // namespace

HttpHeaders cors_headers(const CorsOptions& options,
                         std::string_view origin,
                         std::optional<std::string_view> wanted_headers) {
  const auto names = [&](std::string_view name) {
    return std::find(options.origins.begin(), options.origins.end(), name) != options.origins.end();
  };
  const bool all = names("*");
  if (origin.empty() || (!all && !names(origin))) {
    return {};
  }
  const bool as_star = all && !options.allow_credentials;
  HttpHeaders out{{"Access-Control-Allow-Origin", as_star ? "*" : std::string(origin)},
                  {"Access-Control-Expose-Headers", "X-Request-Id, X-Ignored-Params"}};
  if (!as_star) {
    out.emplace_back("Vary", "Origin");
  }
  if (options.allow_credentials) {
    out.emplace_back("Access-Control-Allow-Credentials", "true");
  }
  if (wanted_headers) {
    out.emplace_back("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    out.emplace_back("Access-Control-Allow-Headers",
                     is_list_of_names(*wanted_headers)
                         ? std::string(*wanted_headers)
                         : "Authorization, Content-Type, X-Request-Id");
    out.emplace_back("Access-Control-Max-Age", "600");
  }
  return out;
}

std::string access_line(AccessLog format, const AccessLine& line) {
  const std::string when = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  if (format == AccessLog::kText) {
    return fmt::format("{} {} \"{} {}\" {} {} {:.1f} ms {}\n",
                       when,
                       line.client,
                       plain(line.method),
                       plain(line.target),
                       line.status,
                       line.num_bytes,
                       line.ms,
                       plain(line.request_id));
  }
  nlohmann::ordered_json out;
  out["time"] = when;
  out["client"] = line.client;
  out["method"] = line.method;
  out["target"] = line.target;
  out["status"] = line.status;
  out["bytes"] = line.num_bytes;
  out["ms"] = line.ms;
  out["request_id"] = line.request_id;
  return out.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace warprow
