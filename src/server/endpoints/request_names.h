// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
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
// Thread: any. The options outlive it.
class RequestNames {
 public:
  explicit RequestNames(const ApiOptions& options) : options_(options) {}

  // Refuses a model that is not served. Returns the headers that name the ignored fields.
  tl::expected<HttpHeaders, ApiError> check(const std::string& model,
                                            const std::vector<std::string>& ignored);

 private:
  // nullopt: the name is served.
  [[nodiscard]] std::optional<ApiError> model_error(const std::string& model) const;
  // The header that names the ignored fields; with --strict an error. Logs each name once.
  Result<HttpHeaders> report_ignored(const std::vector<std::string>& names);

  const ApiOptions& options_;
  std::mutex mutex_;
  std::set<std::string> logged_;  // under mutex_
};

}  // namespace warprow
