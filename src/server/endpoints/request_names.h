// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "engine/engine.h"
#include "server/api_options.h"
#include "server/http_message.h"
#include "server/response/api_error.h"

#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <tl/expected.hpp>

namespace warprow {

// Checks the names that bodies bring: the model's, and those of fields that the server ignores.
//
// Thread: any. Engine and options outlive it.
class RequestNames {
 public:
  RequestNames(const Engine& engine, const ApiOptions& options)
      : engine_(engine), options_(options) {}

  // Refuses a model that is not served. Returns the headers that name the ignored fields.
  tl::expected<HttpHeaders, ApiError> check(const std::string& model,
                                            const std::vector<std::string>& ignored);

  // Whether it is a name of the model itself. An empty one is.
  [[nodiscard]] bool is_base(const std::string& model) const;
  // The loaded adapter of this name; nullopt: none, or it is a name of the model.
  [[nodiscard]] std::optional<LoadedAdapter> adapter(const std::string& model) const;

 private:
  // nullopt: the name is served.
  [[nodiscard]] std::optional<ApiError> model_error(const std::string& model) const;
  // The header that names the ignored fields; with --strict an error. Logs each name once.
  Result<HttpHeaders> report_ignored(const std::vector<std::string>& names);

  const Engine& engine_;
  const ApiOptions& options_;
  std::mutex mutex_;
  std::set<std::string> logged_;  // under mutex_
};

}  // namespace warprow
