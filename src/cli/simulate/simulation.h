// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/bench/serve_load.h"
#include "cli/simulate/arrival_trace.h"
#include "cli/simulate/cost_table.h"
#include "sched/scheduler.h"

#include <cstdint>
#include <functional>

namespace warprow {

struct SimulationOptions {
  int64_t max_concurrency =
      0;  // requests under way at most, as clients would limit them; 0: no limit
  double target_step_us = 0;  // as in engine/scheduler_settings.h; 0: no limit
  // Called after each request's end with the requests and output tokens done.
  std::function<void(int64_t, int64_t)> on_progress = [](int64_t, int64_t) {};
};

struct SimulationResult {
  ServeRecords records;  // times as a client of `bench serve` would measure them
  SchedulerStats scheduler;
  int64_t num_input_toks = 0;    // of the requests that ran
  double busy_s = 0;             // of the device
  double mean_rows = 0;          // of steps with tokens
  int32_t most_blocks_used = 0;  // of the KV cache
  int32_t most_waiting = 0;      // requests
};

// Runs the engine's scheduler over a trace of arrivals, with a table of costs in place of a device and a clock that is
// moved. The order of what happens is that of the engine loop (engine/engine_loop.h): arrivals, then a step if one fits,
// else the output of the oldest one. A request that the scheduler refuses, being too long, has that error.
//
// The prompts' tokens are those of the trace, else made from its keys. Every answer has its full length. A preempted
// request comes back to a step later, as in the engine.
[[nodiscard]] SimulationResult simulate(const SchedulerConfig& config,
                                        const CostTable& costs,
                                        const ArrivalTrace& trace,
                                        const SimulationOptions& options);

}  // namespace warprow
