// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "server/http_message.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "net/tls_context.h"

namespace warprow {

// Which web pages may call the server from a browser.
struct CorsOptions {
  std::vector<std::string> origins;  // "*" for all; empty: no page of another origin
  bool allow_credentials = false;
};

enum class AccessLog { kOff, kText, kJson };

struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;  // 0: any free port
  std::string uds;       // path of a Unix socket, instead of host and port
  uint64_t max_body_bytes = 32 * 1024 * 1024;
  uint32_t max_header_bytes = 64 * 1024;
  uint64_t max_buffered_bytes = 512 * 1024 * 1024;  // of all connections together; see MemoryBudget
  size_t max_connections = 4096;
  std::optional<size_t> max_connections_per_address;  // see ConnectionLimits
  // Limits of requests that wait to be parsed and encoded, in each lane of the pool: in total and per client.
  size_t max_waiting_texts = 2048;
  size_t max_waiting_texts_per_client = 1024;
  std::chrono::seconds idle_timeout{120};   // of a connection without a request
  std::chrono::seconds header_timeout{10};  // of a request's headers, from its first byte
  std::chrono::seconds read_timeout{60};    // of a request, from its first byte to its last
  std::chrono::seconds write_timeout{60};   // of a client that reads nothing
  std::chrono::seconds keep_alive{15};      // a stream without events gets a comment; 0: never
  std::chrono::seconds shutdown_timeout{30};
  std::vector<std::string> allowed_hosts;  // in addition to the loopback names; see HostRule
  CorsOptions cors;
  TlsServerOptions tls;
  AccessLog access_log = AccessLog::kOff;
};

// The CORS headers that let a page of `origin` read the response; none if it may not. wanted_headers: a preflight's
// Access-Control-Request-Headers; nullopt for other requests.
HttpHeaders cors_headers(const CorsOptions& options,
                         std::string_view origin,
                         std::optional<std::string_view> wanted_headers);

// One line of the access log.
struct AccessLine {
  std::string client;
  std::string method;
  std::string target;
  std::string request_id;
  int status = 0;  // 0: the client disconnected before a response
  uint64_t num_bytes = 0;
  double ms = 0;
};
std::string access_line(AccessLog format, const AccessLine& line);

}  // namespace warprow
