// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "runner/ops/step_views.h"

#include <cstdint>

namespace warprow {

// Which draft stands behind each logit of the step: its place in DraftTokens, or -1 behind a row's last logit. It follows
// from the layout of the step alone. What is verified must not depend on the draft: rows are withheld behind a draft that a
// grammar rejects, and that draft counts as one. One item per batch_idx.
struct PlaceDrafts {
  StepRows step;
  const int32_t* logit_pos = nullptr;  // dev i32 [max_logits]
  int32_t max_drafts = 0;
  int32_t* draft_at = nullptr;  // dev i32 [max_logits]

  WR_HD void operator()(int64_t batch_idx) const {
    const int32_t row = step.idx_mapping[batch_idx];
    if (row < 0) {
      return;
    }
    const int32_t end = step.cu_num_logits[batch_idx + 1];
    for (int32_t i = step.cu_num_logits[batch_idx]; i < end; ++i) {
      const int32_t number = logit_pos[i] - (step.rows[row].total_len - 1);
      const bool is_draft = i + 1 < end && number >= 0 && number < max_drafts;
      draft_at[i] = is_draft ? row * max_drafts + number : -1;
    }
  }
};

}  // namespace warprow
