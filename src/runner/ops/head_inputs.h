// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "kernels/row_tokens.h"
#include "runner/ops/combine_tokens.h"
#include "runner/ops/known_token.h"
#include "runner/ops/slot_mapping.h"
#include "runner/ops/step_views.h"

#include <cstdint>

namespace warprow {

// The ids for a step of a head that drafts from hidden states: for each token, the next token of its row. For a row's last
// token that is the next prompt token, or 0 if it is not known yet. With hides_first the id at position 0 is -1, whose
// embedding is zeros. One team per batch_idx, and one for the padding.
struct NextTokens {
  StepRows step;
  RowTokens known;
  const int32_t* input_ids = nullptr;  // dev i32 [num_toks]  of the step
  int32_t num_rows = 0;
  int32_t num_toks_padded = 0;
  bool hides_first = false;
  int32_t* ids = nullptr;  // dev i32 [num_toks_padded]

  template <typename Team>
  WR_HD void operator()(int64_t batch_idx, const Team& team) const {
    const int32_t begin = step.query_start_loc[batch_idx];
    if (batch_idx == num_rows) {
      team.for_each(num_toks_padded - begin, [&](int64_t i) { ids[begin + i] = 0; });
      return;
    }
    const int32_t row = step.idx_mapping[batch_idx];
    const int32_t num_toks = step.query_start_loc[batch_idx + 1] - begin;
    const bool hidden = hides_first && step.rows[row].num_computed_tokens == 0;
    team.for_each(num_toks, [&](int64_t i) {
      ids[begin + i] = hidden && i == 0   ? -1
                       : i + 1 < num_toks ? input_ids[begin + i + 1]
                                          : behind(row, num_toks);
    });
  }

 private:
  [[nodiscard]] WR_HD int32_t behind(int32_t row, int32_t num_toks) const {
    const RowState& state = step.rows[row];
    const int32_t position = state.num_computed_tokens + num_toks;
    return position < state.prefill_len ? known.prefill[known.cell(row, position)] : 0;
  }
};

// The inputs of a head's forward behind the update of the rows, which makes the `num_made`-th drafts. Rows are in batch
// order, and each has query_len positions. The id at a position is the token behind it. The first forward takes the last
// positions that the step computed and accepted, with the model's states there: up to query_len of them, and the rest of
// the row is padding. Each later forward takes the position of the draft that was made last. Rows that yielded nothing are
// padding. One item per batch_idx below num_rows.
struct HeadInputs {
  StepRows step;
  const int32_t* num_sampled = nullptr;   // dev i32 [max_num_seqs] by batch_idx
  const int32_t* step_indices = nullptr;  // dev i32 [max_logits]  the step's logits_indices
  RowTokens known;
  DraftTokens drafts;
  int32_t num_made = 0;
  int32_t num_rows = 0;
  int32_t query_len = 1;
  bool hides_first = false;  // as of NextTokens
  // Written: the arrays of the forward, as of InputBuffers, its layout, and the tokens of the step whose states it takes.
  int32_t* idx_mapping = nullptr;
  int32_t* query_start_loc = nullptr;  // [max_num_seqs + 1]
  int32_t* seq_lens = nullptr;
  int32_t* input_ids = nullptr;
  int32_t* positions = nullptr;
  int32_t* logits_indices = nullptr;
  int32_t* states = nullptr;  // dev i32 [num_rows * query_len], of the first forward; -1: none
  SlotMapping slots;          // without its step

  WR_HD void operator()(int64_t batch_idx) const {
    const auto b = static_cast<int32_t>(batch_idx);
    const int32_t row = step.idx_mapping[b];
    const int32_t yielded = row >= 0 ? num_sampled[b] : 0;
    const int32_t fresh = yielded < query_len ? yielded : query_len;
    const int32_t real = num_made == 0 || yielded == 0 ? fresh : 1;
    const int32_t first = yielded == 0 ? 0 : step.rows[row].total_len - 1 + num_made - real;
    idx_mapping[b] = yielded > 0 ? row : -1;
    query_start_loc[b] = b * query_len;
    if (b == num_rows - 1) {
      query_start_loc[num_rows] = num_rows * query_len;
    }
    seq_lens[b] = yielded > 0 ? first + query_len : 0;
    logits_indices[b] = b * query_len + (real > 0 ? real - 1 : 0);
    for (int32_t i = 0; i < query_len; ++i) {
      const int32_t at = b * query_len + i;
      positions[at] = first + i;
      input_ids[at] = i < real ? token(row, first + i) : 0;
      if (num_made == 0) {
        states[at] = i < real ? last_index(b, yielded) + 1 - real + i : -1;
      }
      for (int32_t g = 0; g < slots.num_groups; ++g) {
        slots.slots[g * slots.slots_stride + at] =
            i < real ? slot_of(slots.groups[g], row, first + i) : -1;
      }
    }
  }

 private:
  // The token of the step from whose logits the row's last token was drawn.
  [[nodiscard]] WR_HD int32_t last_index(int32_t batch_idx, int32_t yielded) const {
    return step_indices[step.cu_num_logits[batch_idx] + yielded - 1];
  }
  [[nodiscard]] WR_HD int32_t token(int32_t row, int32_t position) const {
    if (hides_first && position == 0) {
      return -1;
    }
    return num_made > 0 ? drafts.tokens[row * drafts.max_drafts + num_made - 1]
                        : known_token(known, step.rows[row], row, position + 1);
  }
};

}  // namespace warprow
