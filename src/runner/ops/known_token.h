// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "kernels/row_tokens.h"
#include "runner/ops/slot_mapping.h"
#include "runner/row_state.h"

#include <cstdint>

namespace warprow {

// A row's token at a position, behind the update of the rows.
[[nodiscard]] WR_HD inline int32_t known_token(const RowTokens& known,
                                               const RowState& state,
                                               int32_t row,
                                               int32_t position) {
  if (position == state.total_len - 1) {
    return state.last_sampled;
  }
  const int64_t cell = known.cell(row, position);
  return position < state.prefill_len ? known.prefill[cell] : known.later[cell];
}

// The slot of a row's position in a group; -1: the group has no slots.
[[nodiscard]] WR_HD inline int64_t slot_of(const SlotMapping::Group& group,
                                           int32_t row,
                                           int32_t position) {
  if (group.block_size == 0) {
    return -1;
  }
  return static_cast<int64_t>(group.table.of_row(row)[position / group.block_size]) *
             group.block_size +
         position % group.block_size;
}

}  // namespace warprow
