// SPDX-License-Identifier: Apache-2.0
#include "server/http_message.h"

#include <algorithm>
#include <charconv>

namespace warprow {
std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      unsigned value = 0;
      const char* const end = text.data() + i + 3;
      if (std::from_chars(text.data() + i + 1, end, value, 16).ptr == end) {
        out += static_cast<char>(value);
        i += 2;
        continue;
      }
    }
    out += text[i];
  }
  return out;
}

bool is_plain_id(std::string_view text) {
  constexpr size_t kLongest = 128;
  return !text.empty() && text.size() <= kLongest &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
}

std::vector<std::string> query_values(std::string_view query, std::string_view name) {
  std::vector<std::string> out;
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(pair.size() < query.size() ? pair.size() + 1 : pair.size());
    const size_t equals = pair.find('=');
    if (pair.substr(0, equals) == name) {
      std::string value(equals == std::string_view::npos ? "" : pair.substr(equals + 1));
      std::replace(value.begin(), value.end(), '+', ' ');
      out.push_back(percent_decoded(value));
    }
  }
  return out;
}

std::optional<std::string> query_value(std::string_view query, std::string_view name) {
  std::vector<std::string> all = query_values(query, name);
  return all.empty() ? std::nullopt : std::optional(std::move(all.front()));
}

}  // namespace warprow
