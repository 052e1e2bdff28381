// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "runner/ops/step_views.h"

#include <cstdint>

namespace warprow {

// Fills the tail after a step's real tokens and logits, up to the padded counts: id 0, position 0, PAD slot in
// every group, no row for logits. So a padded step writes no cache cell, reads no token of another row and yields
// none. One item per padded token or logit; items of real ones do nothing. The real counts come from the device, so
// that a recorded launch serves every step of its size.
struct PadTail {
  StepRows step;
  int32_t max_num_seqs = 0;
  int32_t num_toks_padded = 0;
  int32_t num_logits_padded = 0;
  int32_t num_groups = 0;
  int64_t slots_stride = 0;
  int32_t* input_ids = nullptr;       // dev i32 [max_num_batched_tokens]
  int32_t* positions = nullptr;       // dev i32 [max_num_batched_tokens]
  int64_t* slots = nullptr;           // dev i64 [groups, slots_stride]
  int32_t* logits_indices = nullptr;  // dev i32 [max_logits]
  int32_t* logit_row = nullptr;       // dev i32 [max_logits]

  WR_HD void operator()(int64_t i) const {
    if (i >= step.query_start_loc[max_num_seqs] && i < num_toks_padded) {
      input_ids[i] = 0;
      positions[i] = 0;
      for (int32_t group = 0; group < num_groups; ++group) {
        slots[group * slots_stride + i] = -1;
      }
    }
    if (i >= step.cu_num_logits[max_num_seqs] && i < num_logits_padded) {
      logits_indices[i] = -1;
      logit_row[i] = -1;
    }
  }
};

}  // namespace warprow
