// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "kernels/row_tokens.h"
#include "kernels/sample/grammar_mask.h"
#include "runner/ops/step_views.h"

#include <cstdint>

namespace warprow {

// How many tokens each batch row yields. A row without logits, or whose prefill is not complete, yields none. Any
// other row yields the samples of its leading logits, up to and including the first that differs from the draft
// after it: a draft is accepted if the row's own ordinary sample equals it, so tokens are those of a run without
// drafts. Nothing is yielded from a withheld logit on. A row whose first logit is withheld yields none and rejects
// all of its logits. `tokens` < 0 marks a logit that no token could be drawn from; it equals no draft. One item per
// batch_idx.
struct CountSampled {
  StepRows step;
  const int32_t* logit_row = nullptr;       // dev i32 [max_logits]
  const int32_t* logits_indices = nullptr;  // dev i32 [max_logits]
  const int32_t* input_ids = nullptr;       // dev i32 [max_num_batched_tokens]
  const int32_t* tokens = nullptr;          // dev i32 [max_logits]  sampled
  int32_t* num_sampled = nullptr;           // dev i32 [max_num_seqs]
  int32_t* num_rejected = nullptr;          // dev i32 [max_num_seqs]

  WR_HD void operator()(int64_t batch_idx) const {
    if (num_sampled == nullptr) {
      return;
    }
    const int32_t first = step.cu_num_logits[batch_idx];
    const int32_t num_logits = step.cu_num_logits[batch_idx + 1] - first;
    const int32_t row = num_logits > 0 ? logit_row[first] : -1;
    int32_t yielded = 0;
    if (row >= 0) {
      yielded = 1;
      while (yielded < num_logits && logit_row[first + yielded] >= 0 &&
             tokens[first + yielded - 1] == input_ids[logits_indices[first + yielded]]) {
        ++yielded;
      }
    }
    num_sampled[batch_idx] = yielded;
    num_rejected[batch_idx] = row >= 0 || row == kWithheldRow ? num_logits - yielded : 0;
  }
};

// The only code that advances a request: last token, lengths, computed count less rejections, known tokens. One
// item per batch_idx, sequential, because it reads and writes the row's fields.
struct PostUpdate {
  StepRows step;
  const int32_t* tokens = nullptr;  // dev i32 [max_logits]  sampled
  const int32_t* num_sampled = nullptr;
  const int32_t* num_rejected = nullptr;
  RowTokens known;

  WR_HD void operator()(int64_t batch_idx) const {
    if (tokens == nullptr) {
      return;
    }
    const int32_t row = step.idx_mapping[batch_idx];
    if (row < 0) {
      return;
    }
    RowState& state = step.rows[row];
    const int32_t num_toks = step.query_start_loc[batch_idx + 1] - step.query_start_loc[batch_idx];
    const int32_t* yielded = tokens + step.cu_num_logits[batch_idx];
    for (int32_t i = 0; i < num_sampled[batch_idx]; ++i) {
      state.last_sampled = yielded[i];
      known.later[known.cell(row, state.total_len)] = yielded[i];
      ++state.total_len;
    }
    state.num_computed_tokens += num_toks - num_rejected[batch_idx];
  }
};

}  // namespace warprow
