// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "client/http_origin.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace warprow {

struct HttpAnswer {
  int status = 0;
  std::string content_type{};
  std::string body{};  // empty if on_piece has taken the body
};

// One request and the callbacks for its response.
struct HttpCall {
  std::string method = "GET";
  std::string path = "/";  // with the query; follows the origin's prefix
  std::string body{};      // JSON, if any
  // Gets each piece of the body of a response with status 200 to 299 as it arrives, instead of HttpAnswer::body. If it
  // returns false, the call stops and ends with an error. Empty: the whole body is delivered at the end.
  std::function<bool(std::string_view piece)> on_piece{};
  // The last callback of a call. kNotFound: the server could not be reached, or its certificate is not trusted.
  // kInternal: the connection ended early, or the response was not HTTP.
  std::function<void(Result<HttpAnswer> answer)> on_end{};
};

// An HTTP/1.1 client of one server, for any number of concurrent calls. Each call has its own connection, which is kept
// for later calls. https uses TLS 1.2 or 1.3. No redirects, no compression.
//
// Owns: the connections. Thread: one; callbacks run inside run() and run_for() and may start calls.
class HttpClient {
 public:
  using Clock = std::chrono::steady_clock;
  struct Limits {
    std::chrono::seconds connect{10};
    std::chrono::seconds silence{600};  // the longest wait for the next byte
  };

  // headers: sent with every call, for instance {"Authorization", "Bearer ..."}. ca_file: see client_tls_context().
  // With an invalid ca_file every call fails.
  HttpClient(const HttpOrigin& origin,
             std::vector<std::pair<std::string, std::string>> headers,
             Limits limits,
             const std::string& ca_file = {});
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  void start(HttpCall call);
  // Calls `then` at that time, or at once if the time has passed.
  void at(Clock::time_point time, std::function<void()> then);

  // Runs until all calls have ended.
  void run();
  // The same for at most `time`. Returns whether calls are still running.
  bool run_for(std::chrono::milliseconds time);

  // Ends every running call with an error. run() and run_for() deliver the error.
  void drop_all();

  // Starts a call, runs until all calls have ended and returns this call's response.
  Result<HttpAnswer> ask(HttpCall call);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace warprow
