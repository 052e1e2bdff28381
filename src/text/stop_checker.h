// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace warprow {

struct StopMatch {
  size_t index;  // which stop string
  size_t begin;  // its place in the request's text, in bytes from the start
  size_t end;
};

// Stop strings over the streamed text of one request. Text that may yet turn out to begin a stop
// string is held back; the rest passes. The first stop string to be complete wins (of several that
// end at the same byte, the first in the list), so the result does not depend on how the text was
// cut into pieces.
// Owns: the held text, shorter than the longest stop string.
// Thread: one at a time.
// Invariant: pieces passed so far + held text = the text pushed so far, until a match.
class StopChecker {
 public:
  // Empty stop strings are ignored. include_stop: the stop string itself is passed on as well.
  StopChecker(const std::vector<std::string>& stops, bool include_stop);

  // The text that is safe to show now. After a match everything further is dropped. Unless may_end a
  // stop string that ends in `text` is no match; one that begins there may be.
  // Cost: bytes of `text` times the number of stop strings, amortised (Knuth-Morris-Pratt).
  std::string push(std::string_view text, bool may_end = true);
  // The end of the text: what is held back begins no stop string any more.
  std::string flush();

  [[nodiscard]] const std::optional<StopMatch>& match() const { return match_; }
  // After a match: the stop string.
  [[nodiscard]] std::string_view matched() const;

 private:
  struct Pattern {
    std::string text;
    size_t index;                  // in the caller's list
    std::vector<uint32_t> border;  // by length: the longest proper prefix that is also a suffix
    size_t matched = 0;            // how much of the pattern the text ends with
  };
  static bool advance(Pattern& pattern, char c);
  std::string finish(const Pattern& pattern, size_t end);

  std::vector<Pattern> patterns_;
  bool include_stop_;
  std::string held_;
  size_t seen_ = 0;  // bytes pushed
  std::optional<StopMatch> match_;
};

}  // namespace warprow
