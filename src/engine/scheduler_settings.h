// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "config/engine_config.h"
#include "executor/executor.h"
#include "sched/scheduler.h"

#include <cstdint>

namespace warprow {

// The scheduler's settings for a model, as the engine runs it and `warprow simulate` does.
// max_concurrent_batches: Executor::max_concurrent_batches().
[[nodiscard]] SchedulerConfig scheduler_config(const EngineConfig& config,
                                               const ModelFacts& facts,
                                               int32_t max_concurrent_batches);

// The time from one step's end to the next that PrefillBudget keeps to: --target-itl-ms, of which each stage of a pipeline
// has its part, because a row's tokens are as many steps apart as there are stages. 0: no limit.
[[nodiscard]] double target_step_us(const EngineConfig& config, const ModelFacts& facts);

}  // namespace warprow
