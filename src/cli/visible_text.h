// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace warprow {

// Makes a server's text safe for a terminal line: control characters (C0, DEL and C1), which could control the
// terminal, become '?'.
std::string visible_text(std::string_view text);

}  // namespace warprow
