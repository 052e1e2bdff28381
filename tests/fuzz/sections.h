// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace warprow {

// Seeds are files that can be read: their parts stand one below the other, with this line between them.
inline constexpr std::string_view kSectionLine = "\n-----\n";

// The part up to the next such line, which is taken from `rest`.
inline std::string_view take_section(std::string_view& rest) {
  const std::string_view section = rest.substr(0, rest.find(kSectionLine));
  rest.remove_prefix(section.size());
  rest.remove_prefix(rest.empty() ? 0 : kSectionLine.size());
  return section;
}

}  // namespace warprow
