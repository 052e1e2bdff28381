// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/answer.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace warprow {

// A server's counters of speculative decoding since its start, under vLLM's names in /metrics.
struct DraftCounters {
  int64_t num_drafts = 0;  // runs of draft tokens that were verified
  int64_t num_draft_tokens = 0;
  int64_t num_accepted_tokens = 0;
  std::vector<int64_t> accepted_per_pos{};  // by place in a run

  bool operator==(const DraftCounters&) const = default;
};

// Sums the engines of a page of metrics. nullopt: the server has no such counters.
std::optional<DraftCounters> read_draft_counters(std::string_view metrics);

// What a run added, under the names of `vllm bench serve --save-result`. Null if no drafts were verified.
AnswerJson draft_report(const DraftCounters& before, const DraftCounters& after);

// The same as a line of text, for a report that has it; else empty.
std::string draft_report_text(const AnswerJson& report);

}  // namespace warprow
