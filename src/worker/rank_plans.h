// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "worker/model_plan.h"

#include <span>
#include <string>
#include <vector>

namespace warprow {

// The plans of all ranks of the settings, by rank, with the KV cache that they agree on. Errors: as plan_model.
Result<std::vector<ModelPlan>> plan_ranks(const EngineConfig& settings,
                                          const MachineFacts& machine);

// The first rank's plan and, if there are several, what each takes: as lines of text, and as one JSON object.
std::string format_rank_plans(std::span<const ModelPlan> ranks);
std::string rank_plans_json(std::span<const ModelPlan> ranks);

}  // namespace warprow
