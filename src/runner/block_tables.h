// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"
#include "device/arena.h"
#include "kernels/attention/kv_view.h"
#include "kv/kv_spec.h"
#include "runner/staged_writes.h"
#include "runner/step_limits.h"
#include "runner/table_segments.h"
#include "wire/scheduler_output.h"

#include <cstdint>
#include <span>
#include <vector>

namespace warprow {

// One block table per KV group, by row, in kernel blocks: a manager block b is written as the kernel blocks b * bpk
// .. b * bpk + bpk - 1. Its memory is sized by the tokens that the token pool holds. A row of a state group has the
// blocks of its states in place of blocks by token.
//
// Owns: the host's copies; tables lie in the state arena.
// Thread: the runner's.
// Invariant: a row's entries past its blocks are stale and never read.
class BlockTables {
 public:
  BlockTables(Arena& state,
              std::span<const KvGroupSpec> groups,
              const StepLimits& limits,
              StagedTables& staged);

  void append(const BlockAppend& append, std::span<const BlockId> blocks);
  void release(RowId row);
  // Call once in a step, after all appends.
  void stage(StagedWrites& staged);

  [[nodiscard]] int32_t num_groups() const { return static_cast<int32_t>(groups_.size()); }
  // The tables of all rows, at fixed addresses.
  [[nodiscard]] BlockTableView view(int32_t group) const;
  // Kernel blocks of one row.
  [[nodiscard]] int32_t max_blocks(int32_t group) const { return of(group).max_blocks; }
  // Tokens of a kernel block; 0 for a group whose tokens have no slots.
  [[nodiscard]] int32_t slot_block_size(int32_t group) const {
    const KvGroupSpec& spec = of(group).spec;
    return spec.kind == KvKind::kState ? 0 : spec.kernel_block_size;
  }

 private:
  struct Group {
    KvGroupSpec spec;
    int32_t max_blocks;
    TableSegments segments;
    int32_t* cells;  // dev i32 [segments.num_cells()]
    int32_t table;   // index in staged writes
  };
  void add_group(Arena& state,
                 const KvGroupSpec& group,
                 const TableSegments::Limits& cells,
                 StagedTables& staged);
  [[nodiscard]] const Group& of(int32_t group) const { return groups_[static_cast<size_t>(group)]; }

  int32_t num_rows_;
  int32_t* begins_;  // dev i32 [max_num_seqs, groups]
  int32_t begins_table_;
  std::vector<Group> groups_;
};

}  // namespace warprow
