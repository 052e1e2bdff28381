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

// What a worker needs of the thing that runs its steps. What a rank does in a step (draw tokens,
// later: pool, or pass hidden states on) is the class behind it; build_rank (worker/rank.h) picks it.
//
// Thread: one, the worker's.
// Invariant: execute_model and sample_tokens alternate; outputs come in the order of the steps.
class Runner {
 public:
  virtual ~Runner() = default;

  // Gives the runner its cache; before the first step.
  virtual void bind_kv_cache(const KvCache* cache) = 0;

  // The two phases of a step: everything up to the logits, then the rest. Neither waits for the
  // device. grammar may be null.
  virtual void execute_model(const SchedulerOutput& step) = 0;
  virtual void sample_tokens(const GrammarOutput* grammar) = 0;
  // Between the two: false while a step with grammar rows runs its forward.
  [[nodiscard]] virtual bool forward_done() const = 0;

  // Takes the oldest outstanding output; waits for the device. A rank whose results nobody reads
  // takes them too: that is what frees a step's entries of the rings.
  virtual void take_output(ModelRunnerOutput& output) = 0;
  [[nodiscard]] virtual int32_t num_outstanding() const = 0;
  [[nodiscard]] virtual bool output_ready() const = 0;

  // The table of the rank's operations; the runner and its features have added theirs.
  [[nodiscard]] virtual Operations& operations() = 0;

  // Device memory that outlives a step: rows, parameters, tables, tokens. A step without rows
  // changes none of it.
  [[nodiscard]] virtual std::vector<std::span<const std::byte>> lasting_state() const = 0;

  [[nodiscard]] virtual const GraphStats& graph_stats() const = 0;
  // Time that take_output spent waiting for the device, summed.
  [[nodiscard]] virtual int64_t output_wait_ns() const = 0;
};

}  // namespace warprow
