// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace warprow {

// A Prometheus histogram.
//
// Thread: any. The written sum and counts may differ by one value that arrives during the write.
class Histogram {
 public:
  // bounds: the largest value of each bucket, ascending. One more bucket takes all larger values.
  explicit Histogram(std::span<const double> bounds);

  void observe(double value);
  // Appends the lines of one series; labels as in `model_name="m"`.
  void write(std::string& out, std::string_view name, std::string_view labels) const;

 private:
  std::vector<double> bounds_;
  std::vector<std::atomic<int64_t>> counts_;  // [bounds + 1], not cumulative
  std::atomic<double> sum_ = 0;
};

}  // namespace warprow
