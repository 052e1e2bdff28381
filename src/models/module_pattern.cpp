// SPDX-License-Identifier: Apache-2.0
#include "models/module_pattern.h"

#include <cctype>
#include <functional>
#include <string>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr size_t kMaxPattern = 1024;
constexpr int64_t kMaxSteps = 100'000;
constexpr int kMaxDepth = 2000;

// Matches by backtracking, over the pattern's text. `next` is what must match behind.
//
// Invariant: error_ is set if a construct is unknown or a limit is reached; then every answer is false.
class Matcher {
 public:
  using Next = std::function<bool(size_t at)>;

  Matcher(std::string_view pattern, std::string_view text) : pattern_(pattern), text_(text) {}

  bool alternatives(size_t begin, size_t end, size_t at, const Next& next) {
    size_t first = begin;
    for (size_t i = begin; i <= end; i = i < end ? skip(i, end) : i + 1) {
      if (i == end || pattern_[i] == '|') {
        if (sequence(first, i, at, next)) {
          return true;
        }
        first = i + 1;
      }
    }
    return false;
  }
  [[nodiscard]] const std::string& error() const { return error_; }
  [[nodiscard]] bool too_long() const { return too_long_; }

 private:
  bool sequence(size_t begin, size_t end, size_t at, const Next& next) {
    if (!step()) {
      return false;
    }
    if (begin == end) {
      return next(at);
    }
    const Depth depth(depth_);
    if (pattern_[begin] == '^' || pattern_[begin] == '$') {
      const bool holds = pattern_[begin] == '^' ? at == 0 : at == text_.size();
      return holds && sequence(begin + 1, end, at, next);
    }
    const size_t item_end = skip(begin, end);
    const char repeat = item_end < end ? pattern_[item_end] : '\0';
    const bool repeats = repeat == '*' || repeat == '+' || repeat == '?';
    size_t rest = repeats ? item_end + 1 : item_end;
    if (rest < end && pattern_[rest] == '?' && repeats) {
      ++rest;  // lazy: whether it matches is the same
    }
    if (item_end < end && pattern_[item_end] == '{') {
      refuse("{}");
      return false;
    }
    const Next behind = [&, rest, end](size_t to) { return sequence(rest, end, to, next); };
    if (!repeats) {
      return item(begin, item_end, at, behind);
    }
    const bool once_at_most = repeat == '?';
    return (repeat != '+' && behind(at)) || more(begin, item_end, at, once_at_most, behind);
  }

  // The item once or, unless once_at_most, several times.
  bool more(size_t begin, size_t end, size_t at, bool once_at_most, const Next& behind) {
    return item(begin, end, at, [&, at](size_t to) {
      return to > at && (behind(to) || (!once_at_most && more(begin, end, to, false, behind)));
    });
  }

  bool item(size_t begin, size_t end, size_t at, const Next& next) {
    if (!step()) {
      return false;
    }
    const Depth depth(depth_);
    if (pattern_[begin] == '(') {
      size_t inner = begin + 1;
      if (pattern_.substr(inner, 2) == "?:") {
        inner += 2;
      } else if (inner < end && pattern_[inner] == '?') {
        refuse("(?");
        return false;
      }
      return alternatives(inner, end - 1, at, next);
    }
    return at < text_.size() && is_one_of(begin, end, text_[at]) && next(at + 1);
  }

  // Whether c matches the single item.
  bool is_one_of(size_t begin, size_t end, char c) {
    if (pattern_[begin] == '.') {
      return true;
    }
    if (pattern_[begin] == '[') {
      return is_in_set(begin + 1, end - 1, c);
    }
    if (pattern_[begin] != '\\') {
      return pattern_[begin] == c;
    }
    return is_escaped(pattern_[begin + 1], c);
  }

  bool is_escaped(char escaped, char c) {
    const auto byte = static_cast<unsigned char>(c);
    switch (escaped) {
      case 'd':
        return std::isdigit(byte) != 0;
      case 'w':
        return std::isalnum(byte) != 0 || c == '_';
      default:
        if (std::isalnum(static_cast<unsigned char>(escaped)) != 0) {
          refuse(std::string("\\") + escaped);
          return false;
        }
        return escaped == c;
    }
  }

  bool is_in_set(size_t begin, size_t end, char c) {
    const bool negated = begin < end && pattern_[begin] == '^';
    bool found = false;
    for (size_t i = begin + (negated ? 1 : 0); i < end; ++i) {
      if (pattern_[i] == '\\' && i + 1 < end) {
        found = found || is_escaped(pattern_[++i], c);
      } else if (i + 2 < end && pattern_[i + 1] == '-') {
        found = found || (pattern_[i] <= c && c <= pattern_[i + 2]);
        i += 2;
      } else {
        found = found || pattern_[i] == c;
      }
    }
    return found != negated;
  }

  // The place behind the item that begins at i.
  size_t skip(size_t i, size_t end) {
    if (pattern_[i] == '\\') {
      if (i + 1 >= end) {
        refuse("\\ at the end");
        return end;
      }
      return i + 2;
    }
    if (pattern_[i] == '[') {
      size_t at = i + 1;
      at += at < end && pattern_[at] == '^' ? 1 : 0;
      at += at < end && pattern_[at] == ']' ? 1 : 0;
      while (at < end && pattern_[at] != ']') {
        at += pattern_[at] == '\\' ? 2 : 1;
      }
      return closed(at, end, "[");
    }
    if (pattern_[i] != '(') {
      return i + 1;
    }
    if (++nesting_ > 100) {
      refuse("groups nested this deep");
      return end;
    }
    size_t at = i + 1;
    while (at < end && pattern_[at] != ')') {
      at = skip(at, end);
    }
    --nesting_;
    return closed(at, end, "(");
  }
  size_t closed(size_t at, size_t end, const char* what) {
    if (at >= end) {
      refuse(std::string(what) + " that is not closed");
      return end;
    }
    return at + 1;
  }

  bool step() {
    if (++steps_ > kMaxSteps || depth_ > kMaxDepth) {
      too_long_ = true;
    }
    return !too_long_ && error_.empty();
  }
  void refuse(const std::string& what) {
    if (error_.empty()) {
      error_ = what;
    }
  }

  struct Depth {
    explicit Depth(int& of) : depth(of) { ++depth; }
    ~Depth() { --depth; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;
    int& depth;
  };

  std::string_view pattern_;
  std::string_view text_;
  std::string error_;
  int64_t steps_ = 0;
  int depth_ = 0;
  int nesting_ = 0;
  bool too_long_ = false;
};

}  // namespace

Result<bool> module_matches(std::string_view pattern, std::string_view module) {
  if (pattern.size() > kMaxPattern) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{} bytes; at most {} are supported", pattern.size(), kMaxPattern));
  }
  Matcher matcher(pattern, module);
  const auto is_end = [&](size_t at) { return at == module.size(); };
  bool found = false;
  for (size_t begin = 0; begin < module.size() && !found; ++begin) {
    if (begin == 0 || module[begin - 1] == '.') {
      found = matcher.alternatives(0, pattern.size(), begin, is_end);
    }
  }
  if (matcher.too_long()) {
    return fail(ErrorCode::kInvalidArgument, "takes too many steps to match");
  }
  if (!matcher.error().empty()) {
    return fail(ErrorCode::kUnsupported, fmt::format("{} is not supported", matcher.error()));
  }
  return found;
}

}  // namespace warprow
