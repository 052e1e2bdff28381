// SPDX-License-Identifier: Apache-2.0
#include "runner/step_inputs.h"

#include "base/check.h"

#include <algorithm>

namespace warprow {

void write_layout(const InputBatch& batch, int32_t max_num_seqs, const StepUpload::Entry& entry) {
  int32_t toks = 0;
  int32_t logits = 0;
  for (int32_t i = 0; i < batch.num_rows; ++i) {
    const ScheduledRow& row = batch.rows[static_cast<size_t>(i)];
    entry.idx_mapping[i] = index_of(row.row);
    entry.query_start_loc[i] = toks;
    entry.cu_num_logits[i] = logits;
    toks += row.num_tokens;
    logits += row.num_logits;
  }
  WR_CHECK_EQ(toks, batch.num_toks);
  WR_CHECK_EQ(logits, batch.num_logits);
  const StepUpload::Tails tails{batch.num_rows, toks, logits};
  if (tails == *entry.tails) {
    return;
  }
  *entry.tails = tails;
  const int32_t num_padding = max_num_seqs - batch.num_rows;
  std::fill_n(entry.idx_mapping + batch.num_rows, num_padding, -1);
  std::fill_n(entry.query_start_loc + batch.num_rows, num_padding + 1, toks);
  std::fill_n(entry.cu_num_logits + batch.num_rows, num_padding + 1, logits);
}

Prologue make_prologue(const InputBatch& batch,
                       const InputBuffers& inputs,
                       const RequestRows& rows,
                       const BlockTables& tables) {
  const StepRows& step = batch.device;
  const RowTokens& known = rows.store().tokens();
  const bool recorded = batch.graph_mode == GraphMode::kFull;
  Prologue op;
  op.num_rows = batch.num_rows_padded;
  if (batch.num_prefill_rows > 0 || recorded) {
    op.prefill = {step, known, inputs.input_ids};
  }
  op.lengths = {step, inputs.positions, inputs.seq_lens};
  op.combine = {step,
                rows.drafts(),
                known,
                inputs.input_ids,
                inputs.logits_indices,
                inputs.logit_row,
                inputs.logit_pos};
  op.slots.step = step;
  op.slots.num_groups = tables.num_groups();
  op.slots.slots_stride = inputs.max_num_toks;
  op.slots.slots = inputs.slot_mapping;
  for (int32_t g = 0; g < tables.num_groups(); ++g) {
    op.slots.groups[g] = {tables.view(g), tables.slot_block_size(g)};
  }
  if (recorded || batch.num_toks_padded != batch.num_toks ||
      batch.num_logits_padded != batch.num_logits) {
    op.tail = {step,
               inputs.max_num_seqs,
               batch.num_toks_padded,
               batch.num_logits_padded,
               tables.num_groups(),
               inputs.max_num_toks,
               inputs.input_ids,
               inputs.positions,
               inputs.slot_mapping,
               inputs.logits_indices,
               inputs.logit_row};
    op.num_items = std::max(batch.num_toks_padded, batch.num_logits_padded);
  }
  return op;
}

}  // namespace warprow
