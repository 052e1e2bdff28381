// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

#include <cstdint>

namespace warprow {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Prefix {
  size_t len = 1;      // bytes of the longest prefix of a character, at least 1
  bool whole = false;  // the prefix is a character
  bool open = false;   // the text ends inside the character
};

// The complete or partial character at the start of non-empty `s`.
Prefix scan(std::string_view s) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(s[i]); };
  const uint8_t lead = byte(0);
  size_t len = 0;
  uint8_t low = 0x80;  // bounds of the second byte; the lead narrows them
  uint8_t high = 0xBF;
  if (lead < 0x80) {
    return {1, true, false};
  }
  if (lead >= 0xC2 && lead <= 0xDF) {
    len = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    len = 3;
    low = lead == 0xE0 ? 0xA0 : 0x80;
    high = lead == 0xED ? 0x9F : 0xBF;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    len = 4;
    low = lead == 0xF0 ? 0x90 : 0x80;
    high = lead == 0xF4 ? 0x8F : 0xBF;
  } else {
    return {1, false, false};
  }
  for (size_t i = 1; i < len; ++i) {
    if (i == s.size()) {
      return {i, false, true};
    }
    if (byte(i) < low || byte(i) > high) {
      return {i, false, false};
    }
    low = 0x80;
    high = 0xBF;
  }
  return {len, true, false};
}

}  // namespace

size_t utf8_incomplete_tail(std::string_view bytes) {
  for (size_t back = 1; back <= 3 && back <= bytes.size(); ++back) {
    const std::string_view tail = bytes.substr(bytes.size() - back);
    const bool continuation = (static_cast<uint8_t>(tail[0]) & 0xC0U) == 0x80;
    if (!continuation) {
      const Prefix p = scan(tail);
      return p.open && p.len == back ? back : 0;
    }
  }
  return 0;
}

void append_utf8_lossy(std::string_view bytes, std::string& out) {
  while (!bytes.empty()) {
    const Prefix p = scan(bytes);
    out.append(p.whole ? bytes.substr(0, p.len) : kReplacement);
    bytes.remove_prefix(p.len);
  }
}

}  // namespace warprow
