// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "runner/ops/combine_tokens.h"
#include "runner/ops/step_views.h"

#include <cstdint>

namespace warprow {

// What a step yielded for one row, as the last stage of a pipeline sends it to the others. The row's drafts follow it.
struct StageResult {
  static constexpr int64_t kWords = 5;

  int32_t row = -1;
  uint32_t generation = 0;  // of the request that the step ran
  int32_t num_sampled = 0;
  int32_t num_rejected = 0;
  int32_t last_sampled = 0;  // of the row; it is new if num_sampled > 0
};
static_assert(sizeof(StageResult) == StageResult::kWords * sizeof(int32_t));

// Where the results of a step's rows lie.
struct StageResults {
  int32_t* words = nullptr;  // dev i32 [max_num_seqs, stride]
  int64_t stride = 0;        // StageResult::kWords + max_drafts

  [[nodiscard]] WR_HD StageResult& of(int64_t i) const {
    return *reinterpret_cast<StageResult*>(words + i * stride);
  }
  [[nodiscard]] WR_HD int32_t* drafts(int64_t i) const {
    return words + i * stride + StageResult::kWords;
  }
};

// Last stage, after the update of the rows and the proposal of drafts. One item per batch_idx.
struct PackResults {
  StepRows step;
  const int32_t* num_sampled = nullptr;   // dev i32 [max_num_seqs]
  const int32_t* num_rejected = nullptr;  // dev i32 [max_num_seqs]
  DraftTokens drafts;
  StageResults to;

  WR_HD void operator()(int64_t batch_idx) const {
    const int32_t row = step.idx_mapping[batch_idx];
    const RowState& state = step.rows[row];
    to.of(batch_idx) = {
        row, state.generation, num_sampled[batch_idx], num_rejected[batch_idx], state.last_sampled};
    for (int64_t i = 0; i < drafts.max_drafts; ++i) {
      to.drafts(batch_idx)[i] = drafts.tokens[row * drafts.max_drafts + i];
    }
  }
};

// Other stages, behind a step's layers: all of its tokens count as computed, until results say which were rejected.
// One item per batch_idx.
struct AdvanceRows {
  StepRows step;

  WR_HD void operator()(int64_t batch_idx) const {
    const int32_t row = step.idx_mapping[batch_idx];
    if (row >= 0) {
      step.rows[row].num_computed_tokens +=
          step.query_start_loc[batch_idx + 1] - step.query_start_loc[batch_idx];
    }
  }
};

// Other stages, later. Results of a row that was given to another request since are dropped. These stages draw nothing,
// so they need only the last sampled token. One item per row of the results.
struct ApplyResults {
  StageResults from;
  RowState* rows = nullptr;  // dev [max_num_seqs] by row
  DraftTokens drafts;

  WR_HD void operator()(int64_t i) const {
    const StageResult result = from.of(i);
    RowState& state = rows[result.row];
    if (state.generation != result.generation) {
      return;
    }
    state.num_computed_tokens -= result.num_rejected;
    if (result.num_sampled > 0) {
      state.last_sampled = result.last_sampled;
      state.total_len += result.num_sampled;
    }
    for (int64_t d = 0; d < drafts.max_drafts; ++d) {
      drafts.tokens[result.row * drafts.max_drafts + d] = from.drafts(i)[d];
    }
  }
};

}  // namespace warprow
