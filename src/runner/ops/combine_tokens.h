// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "kernels/row_tokens.h"
#include "runner/ops/step_views.h"

#include <cstdint>

namespace warprow {

// Drafts of every row: tokens that a proposer guesses to follow the last sampled one.
struct DraftTokens {
  int32_t* tokens = nullptr;  // dev i32 [max_num_seqs, max_drafts] by row; null without drafts
  int64_t max_drafts = 0;
};

// Writes the last sampled token and the drafts after it into input_ids, and lays out the logits: a batch row with n
// logits has them at its last n tokens; n may be 0. Tokens of the prefill stay as prefill_inputs wrote them. A
// draft also becomes a known token at its position, so that sampling rules see the drafts before a logit as
// outputs; post_update overwrites rejected ones. One team per batch_idx.
struct CombineTokens {
  StepRows step;
  DraftTokens drafts;
  RowTokens known;
  int32_t* input_ids = nullptr;       // dev i32 [max_num_batched_tokens]
  int32_t* logits_indices = nullptr;  // dev i32 [max_logits]  token whose hidden state is used
  int32_t* logit_row = nullptr;       // dev i32 [max_logits]  row; -1: yields no token
  int32_t* logit_pos = nullptr;       // dev i32 [max_logits]  position of the logit's input token

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
    const int32_t seq_len = state.num_computed_tokens + num_toks;
    put_outputs(row, state, end, num_toks, seq_len, team);

    const int32_t first_logit = step.cu_num_logits[batch_idx];
    const int32_t num_logits = step.cu_num_logits[batch_idx + 1] - first_logit;
    team.for_each(num_logits, [&](int64_t i) {
      const auto behind = num_logits - static_cast<int32_t>(i);
      logits_indices[first_logit + i] = end - behind;
      logit_pos[first_logit + i] = seq_len - behind;
      logit_row[first_logit + i] = seq_len >= state.prefill_len ? row : -1;
    });
  }

 private:
  // The row's tokens past its prefill. The first of them is the last sampled one, since all earlier tokens are
  // computed.
  template <typename Team>
  WR_HD void put_outputs(int32_t row,
                         const RowState& state,
                         int32_t end,
                         int32_t num_toks,
                         int32_t seq_len,
                         const Team& team) const {
    const int32_t past = seq_len - state.prefill_len;
    const int32_t count = past < num_toks ? past : num_toks;
    team.for_each(count, [&](int64_t i) {
      const int32_t behind = count - static_cast<int32_t>(i);
      const int32_t draft = seq_len - behind - state.total_len;
      // A position past all drafts occurs only after another rank was lost: results of earlier steps are missing. The
      // output of such a step is not read.
      if (draft < 0 || draft >= drafts.max_drafts) {
        input_ids[end - behind] = state.last_sampled;
        return;
      }
      const int32_t token = drafts.tokens[row * drafts.max_drafts + draft];
      input_ids[end - behind] = token;
      known.later[known.cell(row, seq_len - behind)] = token;
    });
  }
};

}  // namespace warprow
