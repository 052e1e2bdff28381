// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runner/graphs/graph_cache.h"
#include "runner/kv_cache.h"
#include "runner/operations.h"
#include "wire/model_runner_output.h"
#include "wire/scheduler_output.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace warprow {

// The interface through which a worker runs steps. A class that implements it decides what a rank does in a step: the
// forward and then sampling or pooling, or a pipeline stage's part of these. build_rank (worker/rank.h) chooses the class.
//
// Thread: one, the worker's.
// Invariant: execute_model and sample_tokens alternate; outputs come in step order.
class Runner {
 public:
  virtual ~Runner() = default;

  // Binds the runner's KV cache, before the first step.
  virtual void bind_kv_cache(const KvCache* cache) = 0;

  // The two phases of a step: everything up to the logits, then the rest. Neither waits for the
  // device. grammar may be null.
  virtual void execute_model(const SchedulerOutput& step) = 0;
  virtual void sample_tokens(const GrammarOutput* grammar) = 0;
  // Between the two phases: false while the forward of a step with grammar rows still runs.
  [[nodiscard]] virtual bool forward_done() const = 0;

  // Takes the oldest outstanding output; waits for the device. A rank whose results are not used must take them
  // too, to free the step's ring entries.
  virtual void take_output(ModelRunnerOutput& output) = 0;
  [[nodiscard]] virtual int32_t num_outstanding() const = 0;
  [[nodiscard]] virtual bool output_ready() const = 0;

  // The rank's operations; the runner and its features have added theirs.
  [[nodiscard]] virtual Operations& operations() = 0;

  // Device memory that outlives a step: rows, parameters, tables, tokens. A step without rows
  // changes none of it.
  [[nodiscard]] virtual std::vector<std::span<const std::byte>> lasting_state() const = 0;

  [[nodiscard]] virtual const GraphStats& graph_stats() const = 0;
  // Total time that take_output waited for the device.
  [[nodiscard]] virtual int64_t output_wait_ns() const = 0;
};

}  // namespace warprow
