// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/flag_set.h"

#include <string>
#include <string_view>
#include <vector>

namespace warprow {

// The flags under the headings of their groups, in the given order, wrapped to 100 columns.
std::string flags_help(const std::vector<const Flag*>& flags);

// A name and what it is, in the same two columns.
std::string help_row(std::string_view name, std::string_view text);

// Whether `word` means the heading: letter case and - for a space do not matter.
bool same_heading(std::string_view word, std::string_view heading);

}  // namespace warprow
