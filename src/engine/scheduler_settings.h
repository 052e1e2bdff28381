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

}  // namespace warprow
