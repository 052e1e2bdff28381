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
  std::string body{};  // empty where the call took it piece by piece
};

// One request and what to do with its answer.
struct HttpCall {
  std::string method = "GET";
  std::string path = "/";  // with the query; follows the origin's prefix
  std::string body{};      // JSON, if any
  // Of an answer with status 200 to 299 each piece as it arrives, instead of HttpAnswer::body; false
  // gives the answer up (its end is an error). Empty: the whole body at the end.
  std::function<bool(std::string_view piece)> on_piece{};
  // The last thing that happens to a call. kNotFound: the server could not be reached, or its certificate
  // is not to be trusted; kInternal: the connection ended early, or what came was no HTTP.
  std::function<void(Result<HttpAnswer> answer)> on_end{};
};

// An HTTP/1.1 client of one server, for any number of calls at the same time, each on a connection of
// its own that is kept for the next; with https over TLS 1.2 or 1.3. No redirects, no compression.
//
// Owns: the connections. Thread: one; callbacks run inside run() and run_for() and may start calls.
class HttpClient {
 public:
  using Clock = std::chrono::steady_clock;
  struct Limits {
    std::chrono::seconds connect{10};
    std::chrono::seconds silence{600};  // the longest wait for the next byte
  };

  // headers: sent with every call, for instance {"Authorization", "Bearer ..."}. ca_file: see
  // client_tls_context(); a bad one fails every call.
  HttpClient(const HttpOrigin& origin,
             std::vector<std::pair<std::string, std::string>> headers,
             Limits limits,
             const std::string& ca_file = {});
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  void start(HttpCall call);
  // Calls `then` at that time, or at once if it is over.
  void at(Clock::time_point time, std::function<void()> then);

  // Works until nothing is under way.
  void run();
  // The same for so long at most; whether something is still under way.
  bool run_for(std::chrono::milliseconds time);

  // Ends every call under way with an error, which is said within run() and run_for().
  void drop_all();

  // Starts a call and works until everything is over; its answer.
  Result<HttpAnswer> ask(HttpCall call);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace warprow
