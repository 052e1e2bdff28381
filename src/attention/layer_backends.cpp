// SPDX-License-Identifier: Apache-2.0
#include "attention/layer_backends.h"

#include <charconv>
#include <optional>

#include <fmt/format.h>

namespace warprow {
namespace {

struct LayerRange {
  int32_t first = 0;
  int32_t last = 0;
};

std::optional<int32_t> read_number(std::string_view text) {
  int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) {
    return std::nullopt;
  }
  return value;
}

// "3" or "0-3".
std::optional<LayerRange> read_range(std::string_view text) {
  const size_t dash = text.find('-');
  const std::optional<int32_t> first = read_number(text.substr(0, dash));
  const std::optional<int32_t> last =
      dash == std::string_view::npos ? first : read_number(text.substr(dash + 1));
  if (!first || !last || *last < *first) {
    return std::nullopt;
  }
  return LayerRange{*first, *last};
}

tl::unexpected<Error> bad(std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message));
}

}  // namespace

Result<std::vector<std::string>> layer_backends(std::string_view text, int32_t num_layers) {
  std::vector<std::string> backends(static_cast<size_t>(num_layers));
  std::string_view rest_name = "auto";
  for (std::string_view left = text;;) {
    const size_t comma = left.find(',');
    const std::string_view entry = left.substr(0, comma);
    const size_t colon = entry.find(':');
    const std::string_view name = entry.substr(0, colon);
    if (name.empty()) {
      return bad(fmt::format("'{}' lacks a name", text));
    }
    if (colon == std::string_view::npos) {
      rest_name = name;
      if (comma != std::string_view::npos) {
        return bad(fmt::format("'{}' takes all layers that are left and must come last", name));
      }
    } else {
      const std::optional<LayerRange> range = read_range(entry.substr(colon + 1));
      if (!range) {
        return bad(fmt::format("'{}' is no range of layers like native:0-3", entry));
      }
      if (range->last >= num_layers) {
        return bad(fmt::format("'{}' is beyond the last layer, {}", entry, num_layers - 1));
      }
      for (int32_t l = range->first; l <= range->last; ++l) {
        std::string& mine = backends[static_cast<size_t>(l)];
        if (!mine.empty()) {
          return bad(fmt::format("layer {} is given to {} and to {}", l, mine, name));
        }
        mine = name;
      }
    }
    if (comma == std::string_view::npos) {
      break;
    }
    left.remove_prefix(comma + 1);
  }
  for (std::string& mine : backends) {
    if (mine.empty()) {
      mine = rest_name;
    }
  }
  return backends;
}

}  // namespace warprow
