// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/engine.h"
#include "server/metrics/request_journal.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <nlohmann/json.hpp>

namespace warprow {

// One choice of an answer, with what is known about it.
struct ExplainedChoice {
  const ChoiceRecord& record;
  const RequestHistory* history =
      nullptr;                       // null: the engine has forgotten it, or does not know it yet
  std::span<const StepTrace> steps;  // since it came, in their order
  const ModelFacts& facts;
};

inline constexpr size_t kNumWaitReasons = static_cast<size_t>(WaitReason::kOutputs) + 1;

// A time without a row, by why.
struct WaitTime {
  double ms = 0;
  std::array<double, kNumWaitReasons> by_reason{};
  double under_way_ms = 0;  // until the first step planned after it came
};

// What the steps in which a request decoded had in common.
struct DecodeSummary {
  int64_t num_steps = 0;
  int64_t rows = 0;  // summed
  int32_t most_rows = 0;
  double ms = 0;
  double slowest_ms = 0;
  const StepTrace* slowest = nullptr;
  int64_t num_with_prompts = 0;
  int64_t prompt_toks = 0;  // of others
  double with_prompts_ms = 0;
  std::array<int64_t, 3> graphs{};  // by StepStats::graph_mode
};

// What happened to a request and what its time went to. All times are milliseconds, those of events after it came.
struct RequestTimeline {
  nlohmann::ordered_json events = nlohmann::ordered_json::array();
  nlohmann::ordered_json steps =
      nlohmann::ordered_json::array();  // that ran it, if they are wanted
  WaitTime first_wait;
  WaitTime later_wait;  // the last one, behind a preemption
  DecodeSummary decode;
  double queue_ms = 0;
  double prefill_ms = 0;
  double decode_ms = 0;
  double preempted_ms = 0;
  int32_t num_cached = 0;  // prompt tokens that were in the prefix cache
  int32_t num_preemptions = 0;
  int32_t num_again = 0;         // tokens computed again behind preemptions
  int32_t num_again_cached = 0;  // and those found in the cache then
  int32_t num_held = 0;          // steps without a token for want of its mask
  int32_t num_chunk_steps = 0;
  int32_t num_chunk_toks = 0;
  int32_t most_chunk_rows = 0;
};

// Joins a history with the steps. until: its end, or now.
[[nodiscard]] RequestTimeline make_timeline(const ExplainedChoice& choice,
                                            EngineClock::time_point until,
                                            bool with_steps);

[[nodiscard]] double ms_between(EngineClock::time_point from, EngineClock::time_point to);

}  // namespace warprow
