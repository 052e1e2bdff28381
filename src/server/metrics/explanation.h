// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/engine.h"
#include "server/metrics/request_journal.h"

#include <span>
#include <vector>

#include <nlohmann/json.hpp>

namespace warprow {

// What one choice's time went to, from its record at the server, its history in the engine, and the steps that ran
// since it came. All times are milliseconds after it came.
struct ExplainedChoice {
  const ChoiceRecord& record;
  const RequestHistory* history =
      nullptr;                       // null: the engine has forgotten it, or does not know it yet
  std::span<const StepTrace> steps;  // since then, in their order
  const ModelFacts& facts;
};

// {"choice", "state", ..., "why": [sentences], "timeline": [events]}; docs/server.md has the fields. with_steps: also each
// of its steps, the newest kMostSteps of them.
inline constexpr size_t kMostSteps = 4096;
[[nodiscard]] nlohmann::ordered_json explain_choice(const ExplainedChoice& choice, bool with_steps);

// GET /v1/requests/{id}: the choices of one answer, in their order.
[[nodiscard]] nlohmann::ordered_json explanation_json(const Engine& engine,
                                                      const std::vector<ChoiceRecord>& choices,
                                                      bool with_steps);

}  // namespace warprow
