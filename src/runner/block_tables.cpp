// SPDX-License-Identifier: Apache-2.0
#include "runner/block_tables.h"

#include "kv/kv_math.h"

#include <utility>

namespace warprow {

BlockTables::BlockTables(Arena& state,
                         std::span<const KvGroupSpec> groups,
                         const StepLimits& limits,
                         StagedTables& staged)
    : num_rows_(limits.max_num_seqs) {
  const auto num_groups = static_cast<int64_t>(groups.size());
  begins_ = state.alloc<int32_t>(num_rows_ * num_groups);
  begins_table_ = staged.add(begins_, num_groups, num_rows_ * num_groups, num_rows_ * num_groups);
  const int64_t max_tokens = limits.token_pool().max_tokens();
  for (const KvGroupSpec& group : groups) {
    const int32_t per_block = group.kernel_blocks_per_block();
    TableSegments::Limits cells;
    cells.num_rows = num_rows_;
    if (group.kind == KvKind::kState) {
      cells.max_row_cells = cells.unit = group.num_state_cells();
      cells.max_used = int64_t{num_rows_} * cells.unit;
      add_group(state, group, cells, staged);
      continue;
    }
    cells.max_row_cells = max_blocks_per_row(limits.max_row_len(), group.block_size) * per_block;
    cells.unit = max_blocks_per_row(1, group.block_size) * per_block;
    cells.max_used = max_tokens / group.kernel_block_size + int64_t{num_rows_} * cells.unit;
    add_group(state, group, cells, staged);
  }
}

void BlockTables::add_group(Arena& state,
                            const KvGroupSpec& group,
                            const TableSegments::Limits& cells,
                            StagedTables& staged) {
  TableSegments segments(cells);
  auto* memory = state.alloc<int32_t>(segments.num_cells());
  // A row's cells are addressed by their place in the pool: rows have no stride.
  const int32_t table = staged.add(memory, 0, num_rows_, segments.max_staged());
  groups_.push_back({group, cells.max_row_cells, std::move(segments), memory, table});
}

void BlockTables::append(const BlockAppend& append, std::span<const BlockId> blocks) {
  Group& group = groups_[static_cast<size_t>(append.group)];
  const int32_t per_block = group.spec.kernel_blocks_per_block();
  const auto count = static_cast<int32_t>(blocks.size()) * per_block;
  const std::span<int32_t> cells =
      group.segments.append(index_of(append.row), append.start * per_block, count);
  for (size_t i = 0; i < cells.size(); ++i) {
    const auto part = static_cast<int32_t>(i) % per_block;
    cells[i] = index_of(blocks[i / static_cast<size_t>(per_block)]) * per_block + part;
  }
}

void BlockTables::release(RowId row) {
  for (Group& group : groups_) {
    group.segments.release(index_of(row));
  }
}

void BlockTables::stage(StagedWrites& staged) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    groups_[g].segments.stage(staged, groups_[g].table, begins_table_, static_cast<int32_t>(g));
  }
}

BlockTableView BlockTables::view(int32_t group) const {
  return {of(group).cells,
          begins_ + group,
          static_cast<int32_t>(of(group).segments.num_cells()),
          static_cast<int32_t>(groups_.size())};
}

}  // namespace warprow
