// SPDX-License-Identifier: Apache-2.0
#include "server/endpoints/request_names.h"

#include "base/log.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace warprow {
namespace {

// The names come from the client, so they must neither end the header nor make it arbitrarily long.
std::string header_value(const std::vector<std::string>& names) {
  constexpr size_t kLongest = 512;
  std::string out;
  for (const std::string& name : names) {
    out += (out.empty() ? "" : ", ") + name;
  }
  for (char& c : out) {
    c = c >= ' ' && c <= '~' ? c : '?';
  }
  return out.size() > kLongest ? out.substr(0, kLongest) + "..." : out;
}

}  // namespace

tl::expected<HttpHeaders, ApiError> RequestNames::check(const std::string& model,
                                                        const std::vector<std::string>& ignored) {
  if (std::optional<ApiError> error = model_error(model)) {
    return tl::unexpected(*std::move(error));
  }
  return report_ignored(ignored).map_error([](const Error& error) { return api_error(error); });
}

bool RequestNames::is_base(const std::string& model) const {
  const std::vector<std::string>& names = options_.model_names;
  return model.empty() || std::find(names.begin(), names.end(), model) != names.end();
}

std::optional<LoadedAdapter> RequestNames::adapter(const std::string& model) const {
  if (is_base(model)) {
    return std::nullopt;
  }
  const std::vector<LoadedAdapter> loaded = engine_.adapters();
  const auto found = std::ranges::find(loaded, model, &LoadedAdapter::name);
  return found == loaded.end() ? std::nullopt : std::optional(*found);
}

std::optional<ApiError> RequestNames::model_error(const std::string& model) const {
  if (is_base(model)) {
    return std::nullopt;
  }
  std::vector<std::string> names = options_.model_names;
  for (const LoadedAdapter& adapter : engine_.adapters()) {
    if (adapter.name == model) {
      return std::nullopt;
    }
    names.push_back(adapter.name);
  }
  return ApiError{
      404,
      "not_found_error",
      fmt::format("model: '{}' is not served here, but {} is", model, fmt::join(names, ", ")),
      "model"};
}

Result<HttpHeaders> RequestNames::report_ignored(const std::vector<std::string>& names) {
  constexpr size_t kMostLogged = 256;
  if (names.empty()) {
    return HttpHeaders();
  }
  const std::string shown = header_value(names);
  if (options_.strict) {
    return fail(ErrorCode::kInvalidArgument,
                names.size() == 1 ? shown + ": no such field" : "no such fields: " + shown);
  }
  const std::scoped_lock lock(mutex_);
  for (const std::string& name : names) {
    if (logged_.size() < kMostLogged && logged_.insert(name).second) {
      WR_LOG_WARN("a request has an unknown field, which is ignored: {}", header_value({name}));
    }
  }
  return HttpHeaders{{"X-Ignored-Params", shown}};
}

}  // namespace warprow
