// SPDX-License-Identifier: Apache-2.0
#include "worker/device_ids.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include <fmt/format.h>

namespace warprow {
namespace {

tl::unexpected<Error> refused(const std::string& why) {
  return fail(ErrorCode::kInvalidArgument, "--device-ids: " + why);
}

}  // namespace

Result<std::vector<int32_t>> parse_device_ids(const std::string& text) {
  std::vector<int32_t> ids;
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(','), rest.size());
    const std::string_view word = rest.substr(0, end);
    int32_t id = -1;
    const auto [after, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc{} || after != word.data() + word.size() || id < 0) {
      return refused(
          fmt::format("'{}' in '{}' is no number of a GPU, which start at 0", word, text));
    }
    if (std::ranges::find(ids, id) != ids.end()) {
      return refused(
          fmt::format("{} is there twice in '{}'; each rank needs its own GPU", id, text));
    }
    ids.push_back(id);
    if (end + 1 == rest.size()) {
      return refused(fmt::format("'{}' ends with a comma", text));
    }
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return ids;
}

Result<int32_t> device_ordinal(const EngineConfig& config, int32_t nth, int32_t num_ranks) {
  if (config.device_ids.empty()) {
    return nth;
  }
  if (config.device == "cpu") {
    return refused(fmt::format("'{}' names GPUs, but --device is cpu", config.device_ids));
  }
  const Result<std::vector<int32_t>> ids = parse_device_ids(config.device_ids);
  if (!ids) {
    return tl::unexpected(ids.error());
  }
  if (static_cast<int32_t>(ids->size()) != num_ranks) {
    return refused(
        fmt::format("'{}' names {} GPUs for the {} ranks of this host; it must name one "
                    "for each",
                    config.device_ids,
                    ids->size(),
                    num_ranks));
  }
  return (*ids)[static_cast<size_t>(nth)];
}

Result<void> check_device(const EngineConfig& config,
                          const std::string& device,
                          const std::string& why_no_cuda) {
  if (config.device_ids.empty() || device != "cpu") {
    return {};
  }
  return refused(fmt::format("'{}' names a GPU that cannot be used: {}",
                             config.device_ids,
                             why_no_cuda.empty() ? "--device is cpu" : why_no_cuda));
}

}  // namespace warprow
