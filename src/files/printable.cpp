// SPDX-License-Identifier: Apache-2.0
#include "files/printable.h"

namespace warprow {

std::string printable(std::string_view name) {
  constexpr size_t kMaxShown = 80;
  std::string out = "'";
  for (const char c : name.substr(0, kMaxShown)) {
    out += c >= ' ' && c <= '~' ? c : '?';
  }
  return out + (name.size() > kMaxShown ? "...'" : "'");
}

}  // namespace warprow
