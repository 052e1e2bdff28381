// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/engine.h"
#include "server/generation.h"
#include "server/generation_body.h"
#include "server/http_message.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <variant>
#include <vector>

namespace warprow {

struct ApiOptions {
  std::vector<std::string> model_names;  // one or more; answers bear the first
  std::string api_key;                   // empty: none; guards /v1
  std::string version;
};

// The endpoints: a request in, an answer out, at once or as it is generated. Knows no sockets.
//
// Thread: one. The engine outlives this and every Generation.
class Api {
 public:
  Api(Engine& engine, ApiOptions options);

  using Answer = std::variant<HttpReply, std::unique_ptr<Generation>>;
  // wake: see UpdateBox. Never throws: what goes wrong is a reply.
  Answer handle(const HttpRequest& request, std::function<void()> wake) noexcept;

 private:
  Answer route(const HttpRequest& request, std::function<void()> wake);
  Answer generate(Endpoint endpoint, const HttpRequest& request, std::function<void()> wake);
  [[nodiscard]] HttpReply list_models() const;
  [[nodiscard]] bool is_served(const std::string& model) const;
  // The header that names them; logs each name once.
  HttpHeaders report_ignored(const std::vector<std::string>& names);
  AnswerInfo answer_info(Endpoint endpoint);

  Engine& engine_;
  ApiOptions options_;
  int64_t started_;  // seconds since 1970
  std::mt19937_64 random_;
  std::set<std::string> logged_;
};

}  // namespace warprow
