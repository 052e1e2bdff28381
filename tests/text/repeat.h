// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace warprow::test {

inline std::string repeat(std::string_view s, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) {
    out += s;
  }
  return out;
}

}  // namespace warprow::test
