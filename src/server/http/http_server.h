// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "server/http/http_options.h"

#include <functional>
#include <memory>
#include <string>

namespace warprow {

class Api;

// HTTP/1.1 with keep-alive and server-sent events, on Boost.Beast. Only http/ uses Boost.
//
// Owns: the listening socket and all connections. Thread: the I/O loop runs on the thread that calls run(), and it
// sleeps when there is no work. A few more threads make answers that take time.
// Invariant: if a client disconnects, or reads nothing for write_timeout, its engine requests are aborted.
class HttpServer {
 public:
  // Listens at the address now, so that an address in use is an error before a model is loaded. Clients that connect
  // before run() wait for run(). A Unix socket without a listener is replaced; any other file is left alone.
  // kInvalidArgument with the system's message.
  static Result<std::unique_ptr<HttpServer>> listen(const HttpOptions& options);

  virtual ~HttpServer() = default;

  // Whether only this machine can reach the server: at a loopback address or a Unix socket.
  [[nodiscard]] virtual bool is_local() const = 0;

  // Serves until SIGINT or SIGTERM. Then the server takes no new generation, finishes the running ones for at most
  // shutdown_timeout, and returns. A second signal ends the process. An engine that has failed ends it too, some
  // seconds later, so that probes can read why. On SIGHUP, or when one of them changes, the server
  // reloads the certificate and key files for new connections. on_ready gets the URL once the server answers clients.
  virtual void run(Api& api, const std::function<void(const std::string& url)>& on_ready) = 0;
};

}  // namespace warprow
