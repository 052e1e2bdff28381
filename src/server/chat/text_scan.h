// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace warprow {

inline constexpr std::string_view kSpaces = " \t\r\n";

// The length of the longest end of `text` that may be the beginning of `marker`.
inline size_t partial_marker(std::string_view text, std::string_view marker) {
  for (size_t len = std::min(text.size(), marker.size() - 1); len > 0; --len) {
    if (text.ends_with(marker.substr(0, len))) {
      return len;
    }
  }
  return 0;
}

inline size_t first_visible(std::string_view text) {
  return std::min(text.find_first_not_of(kSpaces), text.size());
}

// Without white space at both ends.
inline std::string_view trimmed(std::string_view text) {
  text.remove_prefix(first_visible(text));
  return text.substr(0, text.find_last_not_of(kSpaces) + 1);
}

}  // namespace warprow
