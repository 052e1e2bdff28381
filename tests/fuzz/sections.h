// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace warprow {

// Seed files are readable text: this line separates their sections.
inline constexpr std::string_view kSectionLine = "\n-----\n";

// Takes the section up to the next such line from `rest`.
inline std::string_view take_section(std::string_view& rest) {
  const std::string_view section = rest.substr(0, rest.find(kSectionLine));
  rest.remove_prefix(section.size());
  rest.remove_prefix(rest.empty() ? 0 : kSectionLine.size());
  return section;
}

}  // namespace warprow
