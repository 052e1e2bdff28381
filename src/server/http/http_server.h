// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "server/http/http_options.h"

#include <functional>
#include <memory>
#include <string>

namespace warprow {

class Api;

// HTTP/1.1 with keep-alive and server-sent events, over Boost.Beast. Boost stays inside http/.
//
// Owns: the listening socket and all connections. Thread: one, which run() borrows and which sleeps
// when nothing happens; a few more make answers that take time.
// Invariant: a client that goes away, or takes nothing for a minute, loses its requests in the engine.
class HttpServer {
 public:
  // Listens at the address, so that one in use is found before a model is loaded; clients that come
  // before run() wait for it. A Unix socket that nobody listens to is replaced, any other file left
  // alone. kInvalidArgument with the system's words.
  static Result<std::unique_ptr<HttpServer>> listen(const HttpOptions& options);

  virtual ~HttpServer() = default;

  // Whether only this machine can reach it: at a loopback address or a Unix socket.
  [[nodiscard]] virtual bool is_local() const = 0;

  // Serves until SIGINT or SIGTERM. Then no new generation is taken, what runs is answered, for
  // shutdown_timeout at most, and it returns; a second signal ends the process. SIGHUP, or a change of
  // them, lets it read the files of certificates and keys again, for new connections. on_ready gets the
  // URL once clients are answered.
  virtual void run(Api& api, const std::function<void(const std::string& url)>& on_ready) = 0;
};

}  // namespace warprow
