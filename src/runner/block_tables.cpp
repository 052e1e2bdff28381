// SPDX-License-Identifier: Apache-2.0
#include "runner/block_tables.h"

#include "base/check.h"
#include "kv/kv_math.h"

namespace warprow {

BlockTables::BlockTables(Arena& state,
                         std::span<const KvGroupSpec> groups,
                         const StepLimits& limits,
                         StagedTables& staged)
    : groups_(groups.begin(), groups.end()) {
  for (const KvGroupSpec& group : groups_) {
    const int64_t max_blocks = int64_t{max_blocks_per_row(limits.max_row_len(), group.block_size)} *
                               group.kernel_blocks_per_block();
    const int64_t num_cells = limits.max_num_seqs * max_blocks;
    tables_.push_back(make_view(state.alloc<int32_t>(num_cells), limits.max_num_seqs, max_blocks));
    // A new row's blocks and those of a running row come once in a step.
    staged_tables_.push_back(
        staged.add(tables_.back().data, max_blocks, int64_t{2} * limits.max_num_seqs, num_cells));
  }
}

void BlockTables::append(const BlockAppend& append,
                         std::span<const BlockId> blocks,
                         StagedWrites& staged) const {
  const int32_t per_block = groups_[static_cast<size_t>(append.group)].kernel_blocks_per_block();
  const auto count = static_cast<int32_t>(blocks.size()) * per_block;
  const int32_t start = append.start * per_block;
  WR_CHECK_LE(start + count, table(append.group).shape[1]);
  const std::span<int32_t> cells =
      staged.stage(staged_tables_[static_cast<size_t>(append.group)], append.row, start, count);
  for (size_t i = 0; i < cells.size(); ++i) {
    const auto part = static_cast<int32_t>(i) % per_block;
    cells[i] = index_of(blocks[i / static_cast<size_t>(per_block)]) * per_block + part;
  }
}

}  // namespace warprow
