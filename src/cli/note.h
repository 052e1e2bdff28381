// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace warprow {

// Prints a message for the user on standard error. If the write fails, for example on a full disk, the message is lost
// without an error; fmt::print would throw.
template <typename... Args>
void note(fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  (void)std::fwrite(text.data(), 1, text.size(), stderr);
}

// The same for a text as it is.
inline void note_text(const std::string& text) { note("{}", text); }

}  // namespace warprow
