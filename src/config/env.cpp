// SPDX-License-Identifier: Apache-2.0
#include "config/env.h"

#include <cstdlib>
#include <unistd.h>

namespace warprow {

std::optional<std::string> environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0') {
    return std::nullopt;
  }
  return std::string(value);
}

std::vector<std::string> environment_names(std::string_view prefix) {
  std::vector<std::string> out;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (text.substr(0, prefix.size()) == prefix && equals + 1 < text.size()) {
      out.emplace_back(text.substr(0, equals));
    }
  }
  return out;
}

}  // namespace warprow
