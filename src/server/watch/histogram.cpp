// SPDX-License-Identifier: Apache-2.0
#include "server/watch/histogram.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

namespace warprow {

Histogram::Histogram(std::span<const double> bounds)
    : bounds_(bounds.begin(), bounds.end()), counts_(bounds.size() + 1) {}

void Histogram::observe(double value) {
  const auto bound = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  counts_[static_cast<size_t>(bound - bounds_.begin())].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

void Histogram::write(std::string& out, std::string_view name, std::string_view labels) const {
  int64_t count = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    count += counts_[i].load(std::memory_order_relaxed);
    const std::string bound = i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf";
    fmt::format_to(
        std::back_inserter(out), "{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bound, count);
  }
  fmt::format_to(std::back_inserter(out), "{}_sum{{{}}} {}\n", name, labels, sum_.load());
  fmt::format_to(std::back_inserter(out), "{}_count{{{}}} {}\n", name, labels, count);
}

}  // namespace warprow
