// SPDX-License-Identifier: Apache-2.0
#include "config/env.h"

#include <cstdlib>

namespace warprow {

std::optional<std::string> environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0') {
    return std::nullopt;
  }
  return std::string(value);
}

}  // namespace warprow
