// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/engine.h"
#include "server/api_keys.h"
#include "server/api_options.h"
#include "server/endpoints/endpoints.h"
#include "server/http_message.h"
#include "server/metrics/server_watch.h"

#include <optional>
#include <span>
#include <string>

namespace warprow {

// Finds the endpoint of a request and calls it: from a request to a complete reply or to a Generation. Does not depend
// on sockets.
//
// Thread: any; each Generation by one thread at a time. The engine outlives this and every Generation, the
// watch outlives the engine.
class Api {
 public:
  Api(Engine& engine, ServerWatch& watch, ApiOptions options);

  using Answer = ApiAnswer;
  // wake: see UpdateBox. Never throws: an exception becomes an error reply. May block for a while, unless
  // the request's effort is kNone.
  Answer handle(const HttpRequest& request, const Wake& wake) noexcept;

  // The reply if the head alone decides it: an unknown path or method, a missing key, OPTIONS. nullopt: the request
  // goes on to handle(). Does not read the body.
  [[nodiscard]] std::optional<HttpReply> judge(const HttpRequest& head) const;
  // The work that an endpoint needs. kNone: no time, so it may run on the I/O thread. kText: work on texts; only these
  // requests, and those of kUpdate, have their body read. kReport: reads the engine's state. kCommand: a command to the
  // engine, which may take long. kUpdate: the same with a body.
  enum class Effort { kNone, kText, kReport, kCommand, kUpdate };
  [[nodiscard]] static Effort effort(const HttpRequest& head);
  // The path of the route, or "other".
  [[nodiscard]] static std::string known_path(const std::string& path);

  [[nodiscard]] bool needs_key() const { return !keys_.empty(); }
  [[nodiscard]] ApiKeys& keys() { return keys_; }
  [[nodiscard]] ServerWatch& watch() { return served_.watch; }
  // Why the engine stopped; empty while it runs.
  [[nodiscard]] std::string engine_failure() const { return served_.engine.progress().failure; }

 private:
  struct Route;
  static std::span<const Route> routes();
  static const Route* find_route(const HttpRequest& request);

  Answer route(const HttpRequest& request, const Wake& wake);
  [[nodiscard]] bool has_key(const HttpRequest& request) const;

  Served served_;
  ApiKeys keys_;
};

}  // namespace warprow
