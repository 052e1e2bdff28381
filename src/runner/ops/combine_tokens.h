// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "runner/ops/step_views.h"

#include <cstdint>

namespace warprow {

// Puts the last sampled token and the drafts behind it into input_ids, and lays out the rows of
// logits: a batch row with k logits has them at its last k tokens. The first logit's token is the
// last sampled one, unless it is still part of the prefill (a row that spans the prompt's end),
// which stays as prefill_inputs wrote it. One team per batch_idx.
struct CombineTokens {
  StepRows step;
  const int32_t* draft_tokens =
      nullptr;  // dev i32 [max_num_seqs, max_drafts] by row, or null without speculation
  int64_t max_drafts = 0;
  int32_t* input_ids = nullptr;  // dev i32 [max_num_batched_tokens]
  int32_t* logits_indices =
      nullptr;                   // dev i32 [max_logits]  token whose hidden state gives the logits
  int32_t* logit_row = nullptr;  // dev i32 [max_logits]  row; -1: yields no token
  int32_t* logit_pos = nullptr;  // dev i32 [max_logits]  position of the logit's input token

  template <typename Team>
  WR_HD void operator()(int64_t batch_idx, const Team& team) const {
    if (logit_row == nullptr) {
      return;
    }
    const int32_t row = step.idx_mapping[batch_idx];
    if (row < 0) {
      return;
    }
    const RowState state = step.rows[row];
    const int32_t end = step.query_start_loc[batch_idx + 1];
    const int32_t num_toks = end - step.query_start_loc[batch_idx];
    const int32_t first_logit = step.cu_num_logits[batch_idx];
    const int32_t num_logits = step.cu_num_logits[batch_idx + 1] - first_logit;
    const int32_t seq_len = state.num_computed_tokens + num_toks;
    team.for_each(num_logits, [&](int64_t i) {
      const auto tok = end - num_logits + static_cast<int32_t>(i);
      const int32_t position = seq_len - num_logits + static_cast<int32_t>(i);
      logits_indices[first_logit + i] = tok;
      logit_pos[first_logit + i] = position;
      logit_row[first_logit + i] = seq_len >= state.prefill_len ? row : -1;
      if (position >= state.prefill_len) {
        input_ids[tok] = i == 0 ? state.last_sampled : draft_tokens[row * max_drafts + i - 1];
      }
    });
  }
};

}  // namespace warprow
