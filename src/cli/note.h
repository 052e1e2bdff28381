// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace warprow {

// What is said to a person, on standard error. One that cannot be written, on a full disk for example, is
// lost and nothing else: fmt::print would throw.
template <typename... Args>
void note(fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  (void)std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace warprow
