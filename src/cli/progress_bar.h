// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace warprow {

// "[########            ] 40/100, 812 tokens/s" on one line of a terminal. With total 0 (unknown): "40 done, 812
// tokens/s".
std::string progress_text(int64_t done, int64_t total, double tokens_per_second);

// A progress line on stderr, redrawn at most ten times a second. Prints nothing if stderr is not a terminal. The
// destructor clears the line.
class ProgressBar {
 public:
  ProgressBar(int64_t total, bool shown);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void update(int64_t done, int64_t num_tokens);
  // Clears the line, so that other output can be printed. The next update draws it again.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;

  int64_t total_;
  bool shown_;
  bool on_screen_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_draw_{};
};

}  // namespace warprow
