// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"
#include "device/arena.h"
#include "device/view.h"
#include "kv/kv_spec.h"
#include "runner/staged_writes.h"
#include "wire/scheduler_output.h"

#include <cstdint>
#include <span>
#include <vector>

namespace warprow {

// One block table per KV group, by row, in kernel blocks: a manager block b is written as the
// kernel blocks b * bpk .. b * bpk + bpk - 1.
//
// Owns: nothing; tables lie in the state arena.
// Thread: the runner's.
// Invariant: a row's entries past its blocks are stale and never read.
class BlockTables {
 public:
  BlockTables(Arena& state,
              std::span<const KvGroupSpec> groups,
              int32_t max_num_seqs,
              int32_t max_model_len,
              int32_t first_table);

  void append(const BlockAppend& append,
              std::span<const BlockId> blocks,
              StagedWrites& staged) const;

  [[nodiscard]] int32_t num_groups() const { return static_cast<int32_t>(tables_.size()); }
  // dev i32 [max_num_seqs, max_blocks] of group g
  [[nodiscard]] View<int32_t, 2> table(int32_t group) const {
    return tables_[static_cast<size_t>(group)];
  }
  [[nodiscard]] int32_t kernel_block_size(int32_t group) const {
    return groups_[static_cast<size_t>(group)].kernel_block_size;
  }
  void fill_tables(StagedTable* tables) const;
  // Values that staging all blocks of all rows would take.
  [[nodiscard]] int64_t max_values() const;

 private:
  std::vector<KvGroupSpec> groups_;
  std::vector<View<int32_t, 2>> tables_;
  int32_t first_table_;
};

}  // namespace warprow
