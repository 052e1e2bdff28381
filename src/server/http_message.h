// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace warprow {

// The parts of a request that the endpoints need. The connection handles everything else.
struct HttpRequest {
  std::string method;         // "POST"
  std::string path;           // without the query
  std::string query;          // what follows '?', still encoded
  std::string authorization;  // the Authorization header's value, or empty
  std::string request_id;     // the client's, or one that the connection made
  std::string traceparent;    // the headers of this name and the next, or empty
  std::string tracestate;
  std::string body;
  bool may_compile = true;  // false: it runs where it must not wait for a grammar
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// A complete response. The connection adds Content-Length, Connection and X-Request-Id.
struct HttpReply {
  int status = 200;
  std::string body{};
  std::string content_type = "application/json";
  HttpHeaders headers{};
};

// Whether a text may be a request's id in headers, logs and on screens: 1 to 128 visible ASCII characters.
bool is_plain_id(std::string_view text);

// "a%2Fb" becomes "a/b". Other characters stay, '+' too.
std::string percent_decoded(std::string_view text);

// The values of `name` in "a=1&b=two%20words&a=3", in their order.
std::vector<std::string> query_values(std::string_view query, std::string_view name);
// The first of them; nullopt if there is none.
std::optional<std::string> query_value(std::string_view query, std::string_view name);

}  // namespace warprow
