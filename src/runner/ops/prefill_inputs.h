// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "kernels/row_tokens.h"
#include "runner/ops/step_views.h"

#include <cstdint>

namespace warprow {

// input_ids of the tokens within a row's prefill, read in place from host memory. One team per batch_idx.
// combine_tokens writes the tokens past the prefill.
struct PrefillInputs {
  StepRows step;
  RowTokens tokens;
  int32_t* input_ids = nullptr;  // dev i32 [max_num_batched_tokens]

  template <typename Team>
  WR_HD void operator()(int64_t batch_idx, const Team& team) const {
    if (input_ids == nullptr) {
      return;
    }
    const int32_t row = step.idx_mapping[batch_idx];
    if (row < 0) {
      return;
    }
    const RowState state = step.rows[row];
    const int32_t start = step.query_start_loc[batch_idx];
    const int32_t num_toks = step.query_start_loc[batch_idx + 1] - start;
    const int32_t left = state.prefill_len - state.num_computed_tokens;
    team.for_each(left < num_toks ? left : num_toks, [&](int64_t i) {
      const int32_t position = state.num_computed_tokens + static_cast<int32_t>(i);
      input_ids[start + i] = tokens.prefill[tokens.cell(row, position)];
    });
  }
};

}  // namespace warprow
