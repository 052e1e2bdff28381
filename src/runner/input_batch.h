// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/forward_context.h"
#include "base/ids.h"
#include "device/arena.h"
#include "device/view.h"
#include "kernels/act_view.h"
#include "runner/logits_head.h"
#include "runner/ops/step_views.h"
#include "runner/step_limits.h"
#include "wire/scheduler_output.h"

#include <cstdint>
#include <vector>

namespace warprow {

// Device arrays that a step's inputs are built into, at fixed addresses and sized for the largest
// step, so that captured graphs stay valid.
struct InputBuffers {
  InputBuffers(Arena& state, const StepLimits& limits, int32_t num_groups);

  int32_t max_num_seqs;
  int32_t max_num_toks;
  int32_t* input_ids;       // dev i32 [max_num_toks]          tail: 0 by pad_tail
  int32_t* positions;       // dev i32 [max_num_toks]          tail: 0 by pad_tail
  int64_t* slot_mapping;    // dev i64 [groups, max_num_toks]  tail: -1 by pad_tail
  int32_t* seq_lens;        // dev i32 [max_num_seqs]          tail: 0 by pos_seq_lens
  int32_t* logits_indices;  // dev i32 [max_logits]            tail: -1 by pad_tail
  int32_t* logit_row;       // dev i32 [max_logits]            tail: -1 by pad_tail
  int32_t* logit_pos;       // dev i32 [max_logits]  tail: stale; read where logit_row >= 0
  // dev f32 [max_num_toks, hidden_size] or empty: embeddings of tokens whose id is negative
  View<float, 2> embeddings = {};

  // The embeddings of the first num_toks tokens.
  [[nodiscard]] View<const float, 2> embeddings_of(int32_t num_toks) const {
    View<const float, 2> view = embeddings;
    view.shape[0] = view.empty() ? 0 : num_toks;
    return view;
  }
};

// One step's batch: host counts, the rows in batch order, and the device arrays of the step. A value that holds
// everything that forward and sampling need of the step.
struct InputBatch {
  int32_t num_rows = 0;
  int32_t num_rows_padded = 0;
  int32_t num_toks = 0;
  int32_t num_toks_padded = 0;
  int32_t num_logits = 0;  // a row has 0 to 1 + drafts of them, at its last tokens
  int32_t num_logits_padded = 0;
  LogitsForm logits_form = LogitsForm::kAll;
  int32_t num_decode_rows = 0;   // the first rows, of at most StepLimits::decode_len() tokens each
  int32_t num_decode_toks = 0;   // of those rows
  int32_t decode_len = 1;        // the most tokens of those rows
  int32_t most_prompt_keys = 0;  // of the other rows, at most
  int32_t num_prefill_rows = 0;
  uint32_t sample_rules = 0;  // SampleRules that any row needs
  int32_t num_proposals = 0;  // drafts that a proposer makes for each row's next step
  GraphMode graph_mode = GraphMode::kNone;
  int32_t graph_query_len = 0;     // GraphChoice::query_len
  bool sample_graph = false;       // sampling runs from a graph, of num_logits_padded logits
  bool mark_forward = false;       // StepVote::mark_forward
  ActView hidden;                  // dev [num_toks_padded, hidden_size], valid after the forward
  StepRows device;                 // views of the uploaded arrays
  std::vector<ScheduledRow> rows;  // host, in batch order

  // Sorts the step's rows into batch order: rows with exactly `most_len` tokens first, then by token count; ties
  // keep the scheduler's order. Counts the decode rows, those with at most most_len tokens: attention backends
  // split them from the others.
  void order(const std::vector<ScheduledRow>& scheduled, int32_t most_len);
};

// The token count that all rows share, or 0 if they differ. Uniform graphs need it.
int32_t uniform_query_len(const std::vector<ScheduledRow>& rows);

}  // namespace warprow
