// SPDX-License-Identifier: Apache-2.0
#include "cli/progress_bar.h"

#include "cli/note.h"

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr int64_t kProgressWidth = 30;
constexpr std::chrono::milliseconds kRedraw{100};

}  // namespace

std::string progress_text(int64_t done, int64_t total, double tokens_per_second) {
  if (total == 0) {
    return fmt::format("{} done, {:.0f} tokens/s", done, tokens_per_second);
  }
  const auto filled =
      static_cast<size_t>(std::clamp<int64_t>(done * kProgressWidth / total, 0, kProgressWidth));
  return fmt::format("[{:<{}}] {}/{}, {:.0f} tokens/s",
                     std::string(filled, '#'),
                     kProgressWidth,
                     done,
                     total,
                     tokens_per_second);
}

ProgressBar::ProgressBar(int64_t total, bool shown) : total_(total), shown_(shown) {}

ProgressBar::~ProgressBar() { clear(); }

void ProgressBar::update(int64_t done, int64_t num_tokens) {
  const Clock::time_point now = Clock::now();
  if (!shown_ || now - last_draw_ < kRedraw) {
    return;
  }
  last_draw_ = now;
  on_screen_ = true;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double speed = seconds > 0 ? static_cast<double>(num_tokens) / seconds : 0.0;
  // Return to the start of the line, clear it and draw.
  note("\r\x1b[K{}", progress_text(done, total_, speed));
  std::fflush(stderr);
}

void ProgressBar::clear() {
  if (on_screen_) {
    note("\r\x1b[K");
    std::fflush(stderr);
    on_screen_ = false;
    last_draw_ = {};
  }
}

}  // namespace warprow
