// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runner/row_state.h"

#include <cstdint>

namespace warprow {

// The batch of one step as the runner's operations read it. Row bases are 64-bit.
struct StepRows {
  const int32_t* idx_mapping = nullptr;  // dev i32 [max_num_seqs]      tail: -1, by the host
  const int32_t* query_start_loc =
      nullptr;  // dev i32 [max_num_seqs + 1]  tail: num_toks, by the host
  const int32_t* cu_num_logits =
      nullptr;               // dev i32 [max_num_seqs + 1]  tail: num_logits, by the host
  RowState* rows = nullptr;  // dev [max_num_seqs] by row
};

}  // namespace warprow
