// SPDX-License-Identifier: Apache-2.0
#include "device/built_code.h"

#include "base/check.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <vector>

#include <fmt/format.h>

namespace warprow::cuda {
namespace {

constexpr std::array kTestedCapabilities = {90};  // H100 and H200
constexpr int32_t kEveryLater = std::numeric_limits<int32_t>::max();

struct Range {
  int32_t first = 0;
  int32_t last = 0;  // inclusive
};

Range range_of(std::string_view name) {
  const bool ptx = name.starts_with("compute_");
  const std::string_view number = name.substr(name.find('_') + 1);
  Range range;
  const auto [end, error] =
      std::from_chars(number.data(), number.data() + number.size(), range.first);
  WR_CHECK(error == std::errc(), "'{}' is no name of device code", name);
  const bool this_one_alone = end != number.data() + number.size();  // sm_90a
  range.last = this_one_alone ? range.first : ptx ? kEveryLater : range.first / 10 * 10 + 9;
  return range;
}

// Sorted, with overlapping ranges merged.
std::vector<Range> ranges_of(std::string_view code) {
  std::vector<Range> ranges;
  while (!code.empty()) {
    const size_t space = std::min(code.find(' '), code.size());
    if (space > 0) {
      ranges.push_back(range_of(code.substr(0, space)));
    }
    code.remove_prefix(std::min(space + 1, code.size()));
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return a.first < b.first;
  });
  std::vector<Range> merged;
  for (const Range& range : ranges) {
    if (!merged.empty() && range.first <= merged.back().last) {
      merged.back().last = std::max(merged.back().last, range.last);
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

std::string version(int32_t capability) {
  return fmt::format("{}.{}", capability / 10, capability % 10);
}

}  // namespace

std::string capabilities_in_words(std::string_view code) {
  std::string words;
  for (const Range& range : ranges_of(code)) {
    words += (words.empty() ? "" : ", ") + version(range.first);
    if (range.last == kEveryLater) {
      words += " and later";
    } else if (range.last > range.first) {
      words += " to " + version(range.last);
    }
  }
  return words;
}

std::string why_no_code(std::string_view code, const DeviceFacts& gpu) {
  for (const Range& range : ranges_of(code)) {
    if (gpu.compute_capability >= range.first && gpu.compute_capability <= range.last) {
      return {};
    }
  }
  return fmt::format("GPU '{}' has compute capability {}; this build has code for {}",
                     gpu.name,
                     version(gpu.compute_capability),
                     capabilities_in_words(code));
}

std::string untested_note(const DeviceFacts& gpu) {
  if (std::find(kTestedCapabilities.begin(), kTestedCapabilities.end(), gpu.compute_capability) !=
      kTestedCapabilities.end()) {
    return {};
  }
  return fmt::format(
      "GPU '{}' has compute capability {}: the code for it was compiled but never tested; check "
      "answers with warprow verify",
      gpu.name,
      version(gpu.compute_capability));
}

}  // namespace warprow::cuda
