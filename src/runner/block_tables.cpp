// SPDX-License-Identifier: Apache-2.0
#include "runner/block_tables.h"

#include "base/check.h"
#include "kv/kv_math.h"

namespace warprow {

BlockTables::BlockTables(Arena& state,
                         std::span<const KvGroupSpec> groups,
                         int32_t max_num_seqs,
                         int32_t max_model_len,
                         int32_t first_table)
    : groups_(groups.begin(), groups.end()), first_table_(first_table) {
  WR_CHECK_LE(first_table + static_cast<int32_t>(groups.size()), kMaxStagedTables);
  for (const KvGroupSpec& group : groups_) {
    const int64_t max_blocks = int64_t{max_blocks_per_row(max_model_len, group.block_size)} *
                               group.kernel_blocks_per_block();
    tables_.push_back(
        make_view(state.alloc<int32_t>(max_num_seqs * max_blocks), max_num_seqs, max_blocks));
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
      staged.stage(first_table_ + append.group, append.row, start, count);
  for (size_t i = 0; i < cells.size(); ++i) {
    const auto part = static_cast<int32_t>(i) % per_block;
    cells[i] = index_of(blocks[i / static_cast<size_t>(per_block)]) * per_block + part;
  }
}

void BlockTables::fill_tables(StagedTable* tables) const {
  for (size_t group = 0; group < tables_.size(); ++group) {
    tables[static_cast<size_t>(first_table_) + group] = {tables_[group].data,
                                                         tables_[group].stride[0]};
  }
}

int64_t BlockTables::max_values() const {
  int64_t values = 0;
  for (const View<int32_t, 2>& table : tables_) {
    values += table.shape[0] * table.shape[1];
  }
  return values;
}

}  // namespace warprow
