// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/draft_counters.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr std::string_view kPrefix = "vllm:spec_decode_num_";

// The number behind `key` in a line; -1 without one.
int64_t number_behind(std::string_view line, std::string_view key) {
  const size_t at = line.find(key);
  int64_t value = -1;
  if (at != std::string_view::npos) {
    std::from_chars(line.data() + at + key.size(), line.data() + line.size(), value);
  }
  return value;
}

// The value of a sample: the last word of its line.
int64_t value_of(std::string_view line) {
  const size_t at = line.rfind(' ');
  double value = 0;
  if (at != std::string_view::npos) {
    std::from_chars(line.data() + at + 1, line.data() + line.size(), value);
  }
  return std::llround(value);
}

void add_sample(std::string_view line, DraftCounters& to) {
  const std::string_view name =
      line.substr(kPrefix.size(), line.find_first_of("{ ") - kPrefix.size());
  if (name.starts_with("accepted_tokens_per_pos")) {
    const int64_t position = number_behind(line, "position=\"");
    if (position >= 0 && position < 1024) {
      const auto at = static_cast<size_t>(position);
      to.accepted_per_pos.resize(std::max(to.accepted_per_pos.size(), at + 1));
      to.accepted_per_pos[at] += value_of(line);
    }
  } else if (name.starts_with("accepted_tokens")) {
    to.num_accepted_tokens += value_of(line);
  } else if (name.starts_with("draft_tokens")) {
    to.num_draft_tokens += value_of(line);
  } else if (name.starts_with("drafts")) {
    to.num_drafts += value_of(line);
  }
}

double share(int64_t part, int64_t of) {
  return static_cast<double>(part) / static_cast<double>(of);
}

}  // namespace

std::optional<DraftCounters> read_draft_counters(std::string_view metrics) {
  std::optional<DraftCounters> counters;
  while (!metrics.empty()) {
    const size_t end = std::min(metrics.find('\n'), metrics.size());
    const std::string_view line = metrics.substr(0, end);
    metrics.remove_prefix(std::min(end + 1, metrics.size()));
    if (line.starts_with(kPrefix) && line.find("_created") == std::string_view::npos) {
      add_sample(line, counters ? *counters : counters.emplace());
    }
  }
  return counters;
}

AnswerJson draft_report(const DraftCounters& before, const DraftCounters& after) {
  const int64_t drafts = after.num_drafts - before.num_drafts;
  const int64_t tokens = after.num_draft_tokens - before.num_draft_tokens;
  const int64_t accepted = after.num_accepted_tokens - before.num_accepted_tokens;
  if (drafts <= 0 || tokens <= 0) {
    return nullptr;
  }
  AnswerJson json;
  json["spec_decode_acceptance_rate"] = 100 * share(accepted, tokens);
  json["spec_decode_acceptance_length"] = 1 + share(accepted, drafts);
  json["spec_decode_num_drafts"] = drafts;
  json["spec_decode_draft_tokens"] = tokens;
  json["spec_decode_accepted_tokens"] = accepted;
  AnswerJson rates = AnswerJson::array();
  for (size_t i = 0; i < after.accepted_per_pos.size(); ++i) {
    const int64_t already = i < before.accepted_per_pos.size() ? before.accepted_per_pos[i] : 0;
    rates.push_back(share(after.accepted_per_pos[i] - already, drafts));
  }
  json["spec_decode_per_position_acceptance_rates"] = std::move(rates);
  return json;
}

std::string draft_report_text(const AnswerJson& report) {
  if (!report.contains("spec_decode_num_drafts")) {
    return {};
  }
  std::string text =
      fmt::format("{} of {} draft tokens accepted ({:.1f} %), {:.2f} tokens a run; by place",
                  report["spec_decode_accepted_tokens"].get<int64_t>(),
                  report["spec_decode_draft_tokens"].get<int64_t>(),
                  report["spec_decode_acceptance_rate"].get<double>(),
                  report["spec_decode_acceptance_length"].get<double>());
  for (const AnswerJson& rate : report["spec_decode_per_position_acceptance_rates"]) {
    text += fmt::format(" {:.2f}", rate.get<double>());
  }
  return text + "\n";
}

}  // namespace warprow
