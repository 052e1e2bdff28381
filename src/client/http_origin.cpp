// SPDX-License-Identifier: Apache-2.0
#include "client/http_origin.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr std::string_view kHttp = "http://";
constexpr std::string_view kHttps = "https://";

bool is_port(std::string_view text) {
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && port > 0;
}

std::string read_prefix(std::string_view path) {
  const auto drop_slashes = [&path] {
    while (!path.empty() && path.back() == '/') {
      path.remove_suffix(1);
    }
  };
  drop_slashes();
  constexpr std::string_view kVersion = "/v1";
  if (path.size() >= kVersion.size() && path.substr(path.size() - kVersion.size()) == kVersion) {
    path.remove_suffix(kVersion.size());
    drop_slashes();
  }
  return std::string(path);
}

}  // namespace

std::string HttpOrigin::authority() const {
  const bool is_v6 = host.find(':') != std::string::npos;
  return fmt::format("{}:{}", is_v6 ? "[" + host + "]" : host, port);
}

std::string HttpOrigin::url() const {
  return fmt::format("{}://{}{}", tls ? "https" : "http", authority(), prefix);
}

Result<HttpOrigin> parse_origin(std::string_view url) {
  const auto refused = [url](const char* why) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("url: '{}' {}, for instance http://127.0.0.1:8000", url, why));
  };
  std::string_view rest = url;
  HttpOrigin out;
  if (rest.substr(0, kHttps.size()) == kHttps) {
    rest.remove_prefix(kHttps.size());
    out.tls = true;
    out.port = "443";
  } else if (rest.substr(0, kHttp.size()) == kHttp) {
    rest.remove_prefix(kHttp.size());
    out.port = "80";
  }
  const size_t slash = std::min(rest.find('/'), rest.size());
  out.prefix = read_prefix(rest.substr(slash));
  rest = rest.substr(0, slash);
  std::string_view port;
  if (!rest.empty() && rest.front() == '[') {
    const size_t close = rest.find(']');
    if (close == std::string_view::npos) {
      return refused("has no ] after its address");
    }
    out.host = std::string(rest.substr(1, close - 1));
    port = rest.substr(close + 1);
  } else {
    const size_t colon = std::min(rest.find(':'), rest.size());
    out.host = std::string(rest.substr(0, colon));
    port = rest.substr(colon);
  }
  if (!port.empty()) {
    out.port = std::string(port.substr(1));
    if (port.front() != ':' || !is_port(out.port)) {
      return refused("has no port from 1 to 65535");
    }
  }
  if (out.host.empty() || url.find_first_of(" \t\r\n?#@") != std::string_view::npos) {
    return refused("is no address of a server");
  }
  return out;
}

}  // namespace warprow
