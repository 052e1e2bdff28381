// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "runner/ops/step_views.h"

#include <cstdint>

namespace warprow {

// positions of every token and seq_lens of every row. One team per batch_idx up to the padded row
// count; padding rows get seq_len 0.
struct PosSeqLens {
  StepRows step;
  int32_t* positions = nullptr;  // dev i32 [max_num_batched_tokens]
  int32_t* seq_lens = nullptr;   // dev i32 [max_num_seqs]

  template <typename Team>
  WR_HD void operator()(int64_t batch_idx, const Team& team) const {
    if (seq_lens == nullptr) {
      return;
    }
    const int32_t row = step.idx_mapping[batch_idx];
    const int32_t start = step.query_start_loc[batch_idx];
    const int32_t num_toks = step.query_start_loc[batch_idx + 1] - start;
    const int32_t computed = row < 0 ? 0 : step.rows[row].num_computed_tokens;
    team.for_each(1,
                  [&](int64_t /*i*/) { seq_lens[batch_idx] = row < 0 ? 0 : computed + num_toks; });
    if (row >= 0) {
      team.for_each(num_toks,
                    [&](int64_t i) { positions[start + i] = computed + static_cast<int32_t>(i); });
    }
  }
};

}  // namespace warprow
