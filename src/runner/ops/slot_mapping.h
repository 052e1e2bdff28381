// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "kernels/attention/kv_view.h"
#include "kv/kv_spec.h"
#include "runner/ops/step_views.h"

#include <cstdint>

namespace warprow {

// slot = table[row][pos / block_size] * block_size + pos % block_size, for every KV group, in kernel blocks. One team
// per batch_idx. A group of block size 0 has no slots: nothing is written. pad_tail writes the slots of padding tokens.
struct SlotMapping {
  struct Group {
    BlockTableView table;
    int32_t block_size = 16;
  };
  StepRows step;
  Group groups[kMaxKvGroups];
  int32_t num_groups = 0;
  int64_t slots_stride = 0;
  int64_t* slots = nullptr;  // dev i64 [groups, slots_stride]

  template <typename Team>
  WR_HD void operator()(int64_t batch_idx, const Team& team) const {
    if (slots == nullptr) {
      return;
    }
    const int32_t row = step.idx_mapping[batch_idx];
    if (row < 0) {
      return;
    }
    const int32_t start = step.query_start_loc[batch_idx];
    const int32_t num_toks = step.query_start_loc[batch_idx + 1] - start;
    const int32_t computed = step.rows[row].num_computed_tokens;
    for (int32_t g = 0; g < num_groups; ++g) {
      const Group& group = groups[g];
      if (group.block_size == 0) {
        continue;
      }
      const int32_t* table = group.table.of_row(row);
      int64_t* to = slots + g * slots_stride + start;
      team.for_each(num_toks, [&](int64_t i) {
        const int64_t position = computed + i;
        to[i] = static_cast<int64_t>(table[position / group.block_size]) * group.block_size +
                position % group.block_size;
      });
    }
  }
};

}  // namespace warprow
