// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace warprow {

// A server's words for a line on a terminal: control characters (C0, DEL and C1), which a terminal
// would obey, become '?'.
std::string visible_text(std::string_view text);

}  // namespace warprow
