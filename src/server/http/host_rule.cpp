// SPDX-License-Identifier: Apache-2.0
#include "server/http/host_rule.h"

#include <algorithm>
#include <arpa/inet.h>
#include <charconv>
#include <cstdint>
#include <limits>
#include <netinet/in.h>

namespace warprow {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool is_name_char(char c) {
  return is_digit(c) || (lower(c) >= 'a' && lower(c) <= 'z') || c == '-' || c == '.' || c == '_';
}

// Accepts ":8000", ":" or "".
bool is_port(std::string_view text) {
  if (text.empty() || text == ":") {
    return true;
  }
  if (text.front() != ':' || !std::all_of(text.begin() + 1, text.end(), is_digit)) {
    return false;
  }
  uint32_t port = 0;
  const auto [end, error] = std::from_chars(text.data() + 1, text.data() + text.size(), port);
  return error == std::errc() && port <= std::numeric_limits<uint16_t>::max();
}

std::optional<in6_addr> ipv6(std::string_view text) {
  in6_addr address{};
  return inet_pton(AF_INET6, std::string(text).c_str(), &address) == 1 ? std::optional(address)
                                                                       : std::nullopt;
}

}  // namespace

std::optional<std::string> host_name(std::string_view value) {
  if (value.starts_with('[')) {
    const size_t close = value.find(']');
    if (close == std::string_view::npos || !is_port(value.substr(close + 1)) ||
        !ipv6(value.substr(1, close - 1))) {
      return std::nullopt;
    }
    value = value.substr(1, close - 1);
  } else {
    const std::string_view name = value.substr(0, value.find(':'));
    if (name.empty() || !std::all_of(name.begin(), name.end(), is_name_char) ||
        !is_port(value.substr(name.size()))) {
      return std::nullopt;
    }
    value = name;
  }
  std::string out(value);
  std::transform(out.begin(), out.end(), out.begin(), lower);
  return out;
}

std::optional<std::string> allowed_host(std::string_view text) {
  if (text == "*") {
    return "*";
  }
  if (ipv6(text)) {
    return host_name("[" + std::string(text) + "]");
  }
  std::optional<std::string> name = host_name(text);
  return name && name->size() == text.size() ? name : std::nullopt;
}

bool is_loopback_name(std::string_view name) {
  constexpr uint32_t kFirstByte = 24;  // shift, in bits
  in_addr v4{};
  if (inet_pton(AF_INET, std::string(name).c_str(), &v4) == 1) {
    return ntohl(v4.s_addr) >> kFirstByte == IN_LOOPBACKNET;
  }
  const std::optional<in6_addr> v6 = ipv6(name);
  return name == "localhost" || (v6 && IN6_IS_ADDR_LOOPBACK(&*v6));
}

bool HostRule::allows(std::string_view name) const {
  return !guarded || is_loopback_name(name) ||
         std::any_of(allowed.begin(), allowed.end(), [&](const std::string& one) {
           return one == "*" || one == name;
         });
}

}  // namespace warprow
