// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace warprow {

// What the endpoints see of a request; everything else is the connection's matter.
struct HttpRequest {
  std::string method;         // "POST"
  std::string path;           // without the query
  std::string authorization;  // that header's value, or empty
  std::string body;
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// A complete answer. Content-Length and Connection are added on the way out.
struct HttpReply {
  int status = 200;
  std::string body{};
  std::string content_type = "application/json";
  HttpHeaders headers{};
};

}  // namespace warprow
