// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace warprow {

// Makes a name from a file fit for one line of a message: quoted, control and non-ASCII bytes as '?', shortened if
// long.
std::string printable(std::string_view name);

}  // namespace warprow
