// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "kernels/sample/grammar_mask.h"
#include "runner/ops/step_views.h"

#include <cstdint>

namespace warprow {

// How many tokens each batch row yields: none while its prefill has not reached its end, else 1
// plus the drafts accepted; none, and all logits rejected, where the row is withheld. `sampled` < 0 marks logits that no token could be drawn from. One item
// per batch_idx.
struct CountSampled {
  StepRows step;
  const int32_t* logit_row = nullptr;  // dev i32 [max_logits]
  int32_t* num_sampled = nullptr;      // dev i32 [max_num_seqs]
  int32_t* num_rejected = nullptr;     // dev i32 [max_num_seqs]

  WR_HD void operator()(int64_t batch_idx) const {
    if (num_sampled == nullptr) {
      return;
    }
    const int32_t first = step.cu_num_logits[batch_idx];
    const int32_t num_logits = step.cu_num_logits[batch_idx + 1] - first;
    const bool samples = num_logits > 0 && logit_row[first] >= 0;
    const bool withheld = num_logits > 0 && logit_row[first] == kWithheldRow;
    num_sampled[batch_idx] = samples ? 1 : 0;
    num_rejected[batch_idx] = samples ? num_logits - 1 : withheld ? num_logits : 0;
  }
};

// The only place that moves a request on: last token, lengths, computed count less rejections,
// token history. One item per batch_idx, sequential, since a row's fields are read and written
// here.
struct PostUpdate {
  StepRows step;
  const int32_t* sampled = nullptr;  // dev i32 [max_num_seqs, sampled_stride] by batch_idx
  int64_t sampled_stride = 1;
  const int32_t* num_sampled = nullptr;
  const int32_t* num_rejected = nullptr;
  int32_t* history =
      nullptr;  // dev i32 [max_num_seqs, history_stride] by row: tokens sampled, at their positions
  int64_t history_stride = 0;

  WR_HD void operator()(int64_t batch_idx) const {
    if (sampled == nullptr) {
      return;
    }
    const int32_t row = step.idx_mapping[batch_idx];
    if (row < 0) {
      return;
    }
    RowState& state = step.rows[row];
    const int32_t num_toks = step.query_start_loc[batch_idx + 1] - step.query_start_loc[batch_idx];
    const int32_t* tokens = sampled + batch_idx * sampled_stride;
    for (int32_t i = 0; i < num_sampled[batch_idx]; ++i) {
      state.last_sampled = tokens[i];
      if (state.total_len < history_stride) {
        history[row * history_stride + state.total_len] = tokens[i];
      }
      ++state.total_len;
    }
    state.num_computed_tokens += num_toks - num_rejected[batch_idx];
  }
};

}  // namespace warprow
