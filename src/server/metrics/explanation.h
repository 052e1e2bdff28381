// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/engine.h"
#include "server/metrics/request_journal.h"
#include "server/metrics/request_timeline.h"

#include <cstddef>
#include <vector>

#include <nlohmann/json.hpp>

namespace warprow {

// {"choice", "state", ..., "why": [sentences], "timeline": [events]}; docs/server.md has the fields. with_steps: also each
// of its steps, the newest kMostSteps of them.
inline constexpr size_t kMostSteps = 4096;
[[nodiscard]] nlohmann::ordered_json explain_choice(const ExplainedChoice& choice, bool with_steps);

// GET /v1/requests/{id}: the choices of one answer, in their order.
[[nodiscard]] nlohmann::ordered_json explanation_json(const Engine& engine,
                                                      const std::vector<ChoiceRecord>& choices,
                                                      bool with_steps);

}  // namespace warprow
