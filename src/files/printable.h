// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace warprow {

// A name out of a file, made fit for one line of a message: quoted, control and non-ASCII bytes as
// '?', cut if long.
std::string printable(std::string_view name);

}  // namespace warprow
