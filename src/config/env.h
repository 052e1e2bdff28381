// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace warprow {

// A variable of the process environment; an empty one counts as unset. The only code that reads it for settings.
// Thread: any, as long as no thread calls setenv.
std::optional<std::string> environment(const std::string& name);

// The names of the non-empty variables with this prefix, unordered.
std::vector<std::string> environment_names(std::string_view prefix);

}  // namespace warprow
