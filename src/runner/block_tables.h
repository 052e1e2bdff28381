// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"
#include "device/arena.h"
#include "device/view.h"
#include "kv/kv_spec.h"
#include "runner/staged_writes.h"
#include "runner/step_limits.h"
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
              const StepLimits& limits,
              StagedTables& staged);

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

 private:
  std::vector<KvGroupSpec> groups_;
  std::vector<View<int32_t, 2>> tables_;
  std::vector<int32_t> staged_tables_;  // by group: its index in staged writes
};

}  // namespace warprow
