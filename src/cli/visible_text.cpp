// SPDX-License-Identifier: Apache-2.0
#include "cli/visible_text.h"

#include <cstddef>

namespace warprow {

std::string visible_text(std::string_view text) {
  const auto byte_at = [text](size_t at) {
    return at < text.size() ? static_cast<unsigned char>(text[at]) : 0;
  };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_c1 = byte_at(i) == 0xC2 && byte_at(i + 1) >= 0x80 && byte_at(i + 1) < 0xA0;
    const bool is_control = is_c1 || byte_at(i) < ' ' || byte_at(i) == 0x7F;
    out += is_control ? '?' : text[i];
    i += is_c1 ? 1 : 0;
  }
  return out;
}

}  // namespace warprow
