// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

namespace warprow {

// The text library is Rust and is compiled without the fuzzer's coverage counters. Targets therefore count events here,
// and the fuzzer keeps inputs that cause new ones. The fuzzer clears the counters before each input.
[[gnu::section("__libfuzzer_extra_counters")]] inline std::array<uint8_t, 8192> extra_counters;

inline void count_feature(size_t hash) { extra_counters[hash % extra_counters.size()] = 1; }

// Takes the next run of letters from `rest`; "" at the end.
inline std::string_view take_word(std::string_view& rest) {
  const auto is_letter = [](char c) {
    return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$';
  };
  const auto begin = std::find_if(rest.begin(), rest.end(), is_letter);
  const auto end = std::find_if_not(begin, rest.end(), is_letter);
  const std::string_view word(begin, end);
  rest = {end, rest.end()};
  return word;
}

// Counts which known words of an accepted text follow one another.
inline void count_words(std::string_view text, std::span<const std::string_view> known) {
  size_t last = 0;
  for (std::string_view word = take_word(text); !word.empty(); word = take_word(text)) {
    const auto found = std::find(known.begin(), known.end(), word);
    if (found != known.end()) {
      const auto at = static_cast<size_t>(found - known.begin()) + 1;
      count_feature(last * (known.size() + 1) + at);
      last = at;
    }
  }
}

// Counts errors by their first words, because later words may come from the input.
inline void count_error(std::string_view message) {
  constexpr int kNumWords = 4;
  size_t hash = 0;
  for (int i = 0; i < kNumWords; ++i) {
    hash = hash * 31 + std::hash<std::string_view>()(take_word(message));
  }
  count_feature(hash);
}

}  // namespace warprow
