// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <string>
#include <string_view>

namespace warprow {

// A server's address: the parts of a base URL.
struct HttpOrigin {
  bool tls = false;                // https
  std::string host = "127.0.0.1";  // a name or an address, IPv6 without brackets
  std::string port = "8000";
  std::string prefix;  // precedes every path: empty, or "/x" without a slash at its end

  // "[::1]:8000": the value of the Host header.
  [[nodiscard]] std::string authority() const;
  // "http://[::1]:8000/x": the URL in normalised form.
  [[nodiscard]] std::string url() const;
};

// Parses "http://host:port/prefix", the same with https, "host:port" or "host". The default port is 80 for http://, 443
// for https:// and 8000 without a scheme. A trailing /v1, as in the base URLs of OpenAI's clients, is removed from the
// prefix, because the paths include it. kInvalidArgument for anything else.
Result<HttpOrigin> parse_origin(std::string_view url);

}  // namespace warprow
