// SPDX-License-Identifier: Apache-2.0
#include "text/stop_checker.h"

#include <algorithm>
#include <utility>

namespace warprow {
namespace {

std::vector<uint32_t> borders(std::string_view s) {
  std::vector<uint32_t> border(s.size() + 1, 0);
  uint32_t k = 0;
  for (size_t i = 1; i < s.size(); ++i) {
    while (k > 0 && s[i] != s[k]) {
      k = border[k];
    }
    k += s[i] == s[k] ? 1 : 0;
    border[i + 1] = k;
  }
  return border;
}

}  // namespace

StopChecker::StopChecker(const std::vector<std::string>& stops, bool include_stop)
    : include_stop_(include_stop) {
  for (size_t i = 0; i < stops.size(); ++i) {
    if (!stops[i].empty()) {
      patterns_.push_back({stops[i], i, borders(stops[i])});
    }
  }
}

bool StopChecker::advance(Pattern& pattern, char c) {
  while (pattern.matched > 0 && pattern.text[pattern.matched] != c) {
    pattern.matched = pattern.border[pattern.matched];
  }
  pattern.matched += pattern.text[pattern.matched] == c ? 1 : 0;
  return pattern.matched == pattern.text.size();
}

std::string StopChecker::push(std::string_view text, bool may_end) {
  if (match_) {
    return {};
  }
  for (size_t i = 0; i < text.size(); ++i) {
    const Pattern* complete = nullptr;
    for (Pattern& pattern : patterns_) {
      if (!advance(pattern, text[i])) {
        continue;
      }
      if (!may_end) {
        pattern.matched = pattern.border[pattern.matched];
      } else if (complete == nullptr) {
        complete = &pattern;
      }
    }
    if (complete != nullptr) {
      held_ += text.substr(0, i + 1);
      return finish(*complete, seen_ + i + 1);
    }
  }
  held_ += text;
  seen_ += text.size();
  size_t hold = 0;
  for (const Pattern& pattern : patterns_) {
    hold = std::max(hold, pattern.matched);
  }
  std::string out = held_.substr(0, held_.size() - hold);
  held_.erase(0, held_.size() - hold);
  return out;
}

std::string StopChecker::finish(const Pattern& pattern, size_t end) {
  match_ = StopMatch{pattern.index, end - pattern.text.size(), end};
  if (!include_stop_) {
    held_.resize(held_.size() - pattern.text.size());
  }
  return std::exchange(held_, {});
}

std::string_view StopChecker::matched() const {
  const auto has_matched = [this](const Pattern& pattern) {
    return pattern.index == match_->index;
  };
  return std::find_if(patterns_.begin(), patterns_.end(), has_matched)->text;
}

std::string StopChecker::flush() { return std::exchange(held_, {}); }

}  // namespace warprow
