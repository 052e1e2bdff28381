// SPDX-License-Identifier: Apache-2.0
#include "runner/input_batch.h"

#include <algorithm>

namespace warprow {

InputBuffers::InputBuffers(Arena& state, const StepLimits& limits, int32_t num_groups)
    : max_num_seqs(limits.max_num_seqs),
      max_num_toks(limits.max_num_toks),
      input_ids(state.alloc<int32_t>(max_num_toks)),
      positions(state.alloc<int32_t>(max_num_toks)),
      slot_mapping(state.alloc<int64_t>(static_cast<int64_t>(num_groups) * max_num_toks)),
      seq_lens(state.alloc<int32_t>(max_num_seqs)),
      logits_indices(state.alloc<int32_t>(limits.max_logits())),
      logit_row(state.alloc<int32_t>(limits.max_logits())),
      logit_pos(state.alloc<int32_t>(limits.max_logits())) {}

void InputBatch::order(const std::vector<ScheduledRow>& scheduled, int32_t most_len) {
  rows.assign(scheduled.begin(), scheduled.end());
  // Insertion sort: stable, without the buffer that std::stable_sort would allocate. The scheduler
  // already puts running rows, which are nearly all decodes, before new ones, so there is little to
  // move.
  const auto rank = [most_len](const ScheduledRow& row) {
    return row.num_tokens == most_len ? 0 : row.num_tokens;
  };
  num_decode_rows = 0;
  num_decode_toks = 0;
  decode_len = 1;
  most_prompt_keys = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const int32_t of_row = rank(rows[i]);
    if (rows[i].num_tokens <= most_len) {
      ++num_decode_rows;
      num_decode_toks += rows[i].num_tokens;
      decode_len = std::max(decode_len, rows[i].num_tokens);
    } else {
      most_prompt_keys =
          std::max(most_prompt_keys, rows[i].num_computed_tokens + rows[i].num_tokens);
    }
    if (i > 0 && of_row < rank(rows[i - 1])) {
      const ScheduledRow row = rows[i];
      size_t at = i;
      for (; at > 0 && of_row < rank(rows[at - 1]); --at) {
        rows[at] = rows[at - 1];
      }
      rows[at] = row;
    }
  }
}

int32_t uniform_query_len(const std::vector<ScheduledRow>& rows) {
  if (rows.empty()) {
    return 0;
  }
  const int32_t first = rows.front().num_tokens;
  const bool uniform = std::all_of(rows.begin(), rows.end(), [first](const ScheduledRow& row) {
    return row.num_tokens == first;
  });
  return uniform ? first : 0;
}

}  // namespace warprow
