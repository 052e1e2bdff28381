// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/rank_place.h"
#include "device/arena.h"
#include "device/stream.h"
#include "device/view.h"
#include "runner/input_batch.h"
#include "runner/ops/runner_ops.h"
#include "runner/ops/stage_results.h"
#include "runner/rows.h"
#include "runner/step_limits.h"

#include <cstdint>
#include <vector>

namespace warprow {

// What a stage of a pipeline exchanges with the others: the residual stream goes to the next stage, and results of the
// rows go from the last stage to all others. All sizes follow from the step's message, which every stage has. A rank
// without stages exchanges nothing.
//
// The last stage sends a step's results when it has them. Another stage receives them, in order, before the first step
// that says that it needs them (SchedulerOutput::results_through). Until then they lie in the communicator's memory,
// which must have room for the results of max_steps_in_flight steps: the last stage would otherwise wait for a stage
// that waits for it.
//
// Owns: the results of one step, in the workspace arena.
// Thread: the runner's.
// Invariant: on a stage, results of at most max_steps_in_flight steps are not received.
class StageLink {
 public:
  StageLink(Arena& workspace, const StepLimits& limits, const RankGroup& stages);

  [[nodiscard]] bool is_first() const { return stages_.place.rank == 0; }
  [[nodiscard]] bool is_last() const { return stages_.place.rank == stages_.place.size - 1; }

  // Bytes of a step's results with this many rows.
  static int64_t result_bytes(int64_t num_rows, int32_t max_drafts);

  // Any stage but the last: receives the results of the steps up to `through` and applies them to their rows.
  void receive_results(Stream& stream, RunnerOps& ops, const RequestRows& rows, int64_t through);
  // The residual stream of the step's tokens, f32 [T, hidden_size]: into a stage, and out of it.
  void receive_residual(Stream& stream, const View<float, 2>& residual) const;
  void send_residual(Stream& stream, const View<float, 2>& residual) const;

  // The end of a step on any stage but the last: its rows advance, and their results will come.
  void advance_rows(Stream& stream,
                    RunnerOps& ops,
                    const RequestRows& rows,
                    const InputBatch& batch,
                    int64_t step);
  // The end of a step on the last stage: sends the results.
  void send_results(Stream& stream, RunnerOps& ops, const PackResults& results, int64_t num_rows);
  // Where PackResults writes.
  [[nodiscard]] const StageResults& results() const { return results_; }

 private:
  // A step whose results were not received.
  struct Expected {
    int64_t step = 0;
    int64_t num_rows = 0;
  };

  void receive_next(Stream& stream, RunnerOps& ops, const RequestRows& rows);

  RankGroup stages_;
  StageResults results_;
  int32_t max_drafts_;
  std::vector<Expected> expected_;  // a ring, in order
  uint64_t num_expected_ = 0;       // since the start
  uint64_t num_received_ = 0;
};

}  // namespace warprow
