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
  size_t begin;  // byte offset in the request's text
  size_t end;
};

// Finds stop strings in the streamed text of one request. Text that may begin a stop string is held back; the rest
// passes. The stop string that completes first wins. If several end at the same byte, the first in the list wins. So
// the result does not depend on how the text is cut into pieces.
// Owns: the held text, shorter than the longest stop string.
// Thread: one at a time.
// Invariant: pieces passed so far + held text = the text pushed so far, until a match.
class StopChecker {
 public:
  // Empty stop strings are ignored. include_stop: the stop string itself passes too.
  StopChecker(const std::vector<std::string>& stops, bool include_stop);

  // The text that may be sent now. After a match all further text is dropped. Without may_end a stop string that ends
  // in `text` is not a match; one that begins there may match later.
  // Cost: bytes of `text` times the number of stop strings, amortised (Knuth-Morris-Pratt).
  std::string push(std::string_view text, bool may_end = true);
  // Ends the text. Returns the held text, which cannot become a stop string any more.
  std::string flush();

  [[nodiscard]] const std::optional<StopMatch>& match() const { return match_; }
  // After a match: the stop string.
  [[nodiscard]] std::string_view matched() const;

 private:
  struct Pattern {
    std::string text;
    size_t index;                  // in the caller's list
    std::vector<uint32_t> border;  // by length: the longest proper prefix that is also a suffix
    size_t matched = 0;            // length of the pattern's prefix that ends the text so far
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
