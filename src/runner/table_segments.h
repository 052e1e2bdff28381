// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runner/staged_writes.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace warprow {

// The block tables of one KV group in one pool of cells. A row's cells are contiguous in a segment. A full segment
// moves to a larger one, and its size is kept for the row's next request. When the end of the pool is reached, the
// segments of live rows are compacted. If the pool has room for all rows at their maximum length, each row gets a
// segment of that size at once and nothing ever moves.
//
// Owns: the host's copy of the cells, from which a moved segment is staged again.
// Thread: the runner's.
// Invariant: segments do not overlap; cells past a row's used ones are stale.
class TableSegments {
 public:
  struct Limits {
    int32_t num_rows = 0;
    int32_t max_row_cells = 0;
    int32_t unit = 1;      // segments are multiples of it
    int64_t max_used = 0;  // of all rows together, each rounded up to a multiple of unit
  };
  explicit TableSegments(const Limits& limits);

  [[nodiscard]] int64_t num_cells() const { return static_cast<int64_t>(cells_.size()); }
  // The most cells that one stage() writes.
  [[nodiscard]] int64_t max_staged() const {
    return std::min<int64_t>(limits_.max_used, num_cells());
  }

  // Returns room for cells [start, start + count) of a row; the caller must fill it at once. start 0: the row has a
  // new request.
  std::span<int32_t> append(int32_t row, int32_t start, int32_t count);
  void release(int32_t row) { rows_[static_cast<size_t>(row)].used = 0; }
  // Stages what changed since the last call: cells into table `cells`, and the first cell of each moved row into
  // table `begins` at column `group`.
  void stage(StagedWrites& staged, int32_t cells, int32_t begins, int32_t group);

 private:
  struct Segment {
    int32_t begin = 0;
    int32_t capacity = 0;
    int32_t used = 0;
    int32_t first_changed = kUnchanged;
    bool moved = false;
  };
  static constexpr int32_t kUnchanged = std::numeric_limits<int32_t>::max();

  void grow(int32_t row, int32_t needed);
  void move_together();
  void move(Segment& segment, int32_t to, int32_t capacity);
  void note_change(int32_t row, int32_t first);

  Limits limits_;
  int32_t end_ = 0;  // end of the last segment
  std::vector<int32_t> cells_;
  std::vector<Segment> rows_;     // [num_rows]
  std::vector<int32_t> changed_;  // rows
  std::vector<int32_t> order_;    // [num_rows] scratch of move_together
};

}  // namespace warprow
