// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "cli/flag_set.h"

#include <cstdint>
#include <string>

namespace warprow {

// A number of things, 0 to 1000000, with the suffixes of parse_size.
Result<int64_t> parse_count(const char* name, const std::string& text);
// A flag with one; the help shows the default, which is what target holds.
void add_count_flag(FlagSet& flags, Flag flag, int64_t& target);

// A flag with a number that is not below 0; "inf" is one.
void add_number_flag(FlagSet& flags, Flag flag, double& target);

}  // namespace warprow
