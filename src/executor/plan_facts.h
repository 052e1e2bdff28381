// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "executor/executor.h"
#include "worker/model_plan.h"

namespace warprow {

// What the engine needs of a plan, loaded or not.
[[nodiscard]] ModelFacts plan_facts(const ModelPlan& plan);

}  // namespace warprow
