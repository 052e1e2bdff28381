// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/flags/flag_set.h"

#include <string>
#include <string_view>
#include <vector>

namespace warprow {

// The flags under the headings of their groups, in the given order, wrapped to 100 columns.
std::string flags_help(const std::vector<const Flag*>& flags);

// A name and its description, in the same two columns.
std::string help_row(std::string_view name, std::string_view text);

// Whether `word` equals the heading. Letter case does not matter, and '-' matches a space.
bool same_heading(std::string_view word, std::string_view heading);

}  // namespace warprow
