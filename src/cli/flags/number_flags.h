// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "cli/flags/flag_set.h"

#include <cstdint>
#include <string>

namespace warprow {

// Parses a count, 0 to 1000000, with the suffixes of parse_size.
Result<int64_t> parse_count(const char* name, const std::string& text);
// Adds a flag for a count. The help text shows the default, which is the value in target.
void add_count_flag(FlagSet& flags, Flag flag, int64_t& target);

// Adds a flag for a number of at least 0; "inf" is valid.
void add_number_flag(FlagSet& flags, Flag flag, double& target);

}  // namespace warprow
