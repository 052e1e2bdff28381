// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace warprow {

// A variable of the process environment; an empty one counts as unset. The only place that reads it
// for settings. Thread: any, as long as nobody calls setenv.
std::optional<std::string> environment(const std::string& name);

}  // namespace warprow
