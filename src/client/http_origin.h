// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <string>
#include <string_view>

namespace warprow {

// Where a server is: the parts of a base URL.
struct HttpOrigin {
  bool tls = false;                // https
  std::string host = "127.0.0.1";  // a name or an address, IPv6 without brackets
  std::string port = "8000";
  std::string prefix;  // in front of every path: empty, or "/x" without a slash at its end

  // "[::1]:8000": what the header Host says.
  [[nodiscard]] std::string authority() const;
  // "http://[::1]:8000/x": what it was read from, in one form.
  [[nodiscard]] std::string url() const;
};

// Reads "http://host:port/prefix", the same with https, "host:port" or "host"; the port is 80 where http://
// names none, 443 for https:// and 8000 without a scheme. A prefix that ends with /v1, as the base URLs of OpenAI's clients do,
// loses it: paths bring their own. kInvalidArgument for anything else.
Result<HttpOrigin> parse_origin(std::string_view url);

}  // namespace warprow
