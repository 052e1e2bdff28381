// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"

#include <cstdint>

namespace warprow {

// One staged write: cells [start, start + count) of a table's row take values[begin ...].
struct StagedWrite {
  int32_t start = 0;
  int32_t count = 0;
  int32_t begin = 0;
};

// All writes of a step to one row of one table, in the order in which they were staged.
struct StagedGroup {
  int32_t table = 0;
  int32_t row = 0;
  int32_t first_write = 0;
  int32_t num_writes = 0;
  int32_t first_cell = 0;  // all cells that these writes touch lie in [first_cell, end_cell)
  int32_t end_cell = 0;
};

// A device table of i32 cells, [max_rows, row_stride].
struct StagedTable {
  int32_t* cells = nullptr;
  int64_t row_stride = 0;
};
inline constexpr int32_t kMaxStagedTables = 24;  // of rows, groups and features

// Scatters the step's staged writes; one team per group. One lane decides each cell, so the latest write wins in
// any order of lanes. Cells that no write names keep what the device wrote there.
struct ApplyStagedWrites {
  StagedTable tables[kMaxStagedTables];
  const StagedGroup* groups = nullptr;
  const StagedWrite* writes = nullptr;
  const int32_t* values = nullptr;

  template <typename Team>
  WR_HD void operator()(int64_t index, const Team& team) const {
    const StagedGroup group = groups[index];
    const StagedTable table = tables[group.table];
    int32_t* row = table.cells + static_cast<int64_t>(group.row) * table.row_stride;
    team.for_each(group.end_cell - group.first_cell, [&](int64_t i) {
      const int32_t cell = group.first_cell + static_cast<int32_t>(i);
      for (int32_t w = group.num_writes - 1; w >= 0; --w) {
        const StagedWrite write = writes[group.first_write + w];
        if (cell >= write.start && cell < write.start + write.count) {
          row[cell] = values[write.begin + cell - write.start];
          return;
        }
      }
    });
  }
};

}  // namespace warprow
