// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace warprow {

// UTF-8 as Unicode's table 3-7 defines it: no overlong forms, no surrogates, nothing above
// U+10FFFF.

// The number of bytes (0 to 3) at the end of `bytes` that begin a character which more bytes could complete.
size_t utf8_incomplete_tail(std::string_view bytes);

// Appends `bytes` with each ill-formed part replaced by U+FFFD: one for every maximal prefix of a
// character (Unicode section 3.9), which is what Python's errors="replace" does.
void append_utf8_lossy(std::string_view bytes, std::string& out);

}  // namespace warprow
