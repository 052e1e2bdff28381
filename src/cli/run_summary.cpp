// SPDX-License-Identifier: Apache-2.0
#include "cli/run_summary.h"

#include "cli/answer.h"
#include "cli/note.h"

#include <fmt/format.h>

namespace warprow {

std::string speed_text(int64_t num_tokens, double seconds) {
  const double speed = seconds > 0 ? static_cast<double>(num_tokens) / seconds : 0.0;
  return fmt::format("{} tokens in {:.2f} s, {:.1f} tokens/s", num_tokens, seconds, speed);
}

std::string stats_text(const EngineStats& stats) {
  std::string out;
  const AnswerJson counters = stats_json(stats);
  for (const auto& [name, value] : counters.items()) {
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", name, value.dump());
  }
  return out;
}

void print_summary(int64_t num_tokens, double seconds, const EngineStats& stats, bool with_stats) {
  note("{}\n", speed_text(num_tokens, seconds));
  if (with_stats) {
    note("{}\n", stats_text(stats));
  }
}

}  // namespace warprow
