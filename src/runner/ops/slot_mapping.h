// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "runner/ops/step_views.h"

#include <cstdint>

namespace warprow {

// slot = table[row][pos / block_size] * block_size + pos % block_size, for one KV group, in kernel
// blocks. One team per batch_idx; padding tokens are pad_tail's part.
struct SlotMapping {
  StepRows step;
  const int32_t* block_table = nullptr;  // dev i32 [max_num_seqs, table_stride] by row
  int64_t table_stride = 0;
  int32_t block_size = 16;
  int64_t* slots = nullptr;  // dev i64 [max_num_batched_tokens]

  template <typename Team>
  WR_HD void operator()(int64_t batch_idx, const Team& team) const {
    const int32_t row = step.idx_mapping[batch_idx];
    if (row < 0) {
      return;
    }
    const int32_t start = step.query_start_loc[batch_idx];
    const int32_t num_toks = step.query_start_loc[batch_idx + 1] - start;
    const int32_t computed = step.rows[row].num_computed_tokens;
    const int32_t* table = block_table + row * table_stride;
    team.for_each(num_toks, [&](int64_t i) {
      const int64_t position = computed + i;
      slots[start + i] =
          static_cast<int64_t>(table[position / block_size]) * block_size + position % block_size;
    });
  }
};

}  // namespace warprow
