// SPDX-License-Identifier: Apache-2.0
#include "runner/table_segments.h"

#include "base/check.h"
#include "base/math.h"

#include <algorithm>
#include <utility>

namespace warprow {

// Twice the cells that can be in use: a segment may be twice its used cells. Each compaction is amortised over the
// writes of at least half of the pool's cells since the last one.
TableSegments::TableSegments(const Limits& limits)
    : limits_(limits), rows_(static_cast<size_t>(limits.num_rows)) {
  const int64_t of_all = int64_t{limits.num_rows} * limits.max_row_cells;
  const int64_t cells = std::min(of_all, 2 * limits.max_used);
  WR_CHECK_LE(cells, int64_t{INT32_MAX});
  cells_.resize(static_cast<size_t>(cells));
  changed_.reserve(rows_.size());
  order_.reserve(rows_.size());
}

std::span<int32_t> TableSegments::append(int32_t row, int32_t start, int32_t count) {
  Segment& segment = rows_[static_cast<size_t>(row)];
  const int32_t needed = start + count;
  WR_CHECK_LE(needed, limits_.max_row_cells);
  segment.used = start;
  if (needed > segment.capacity) {
    grow(row, needed);
  }
  segment.used = needed;
  note_change(row, start);
  return std::span(cells_)
      .subspan(static_cast<size_t>(segment.begin))
      .subspan(static_cast<size_t>(start), static_cast<size_t>(count));
}

void TableSegments::note_change(int32_t row, int32_t first) {
  Segment& segment = rows_[static_cast<size_t>(row)];
  if (segment.first_changed == kUnchanged) {
    changed_.push_back(row);
  }
  segment.first_changed = std::min(segment.first_changed, first);
}

void TableSegments::grow(int32_t row, int32_t needed) {
  Segment& segment = rows_[static_cast<size_t>(row)];
  const int64_t size = num_cells();
  const bool fits_all = size == int64_t{limits_.num_rows} * limits_.max_row_cells;
  const int32_t least = round_up(needed, limits_.unit);
  const int32_t wanted =
      fits_all ? limits_.max_row_cells
               : std::min(limits_.max_row_cells, std::max(2 * segment.capacity, least));
  if (end_ + int64_t{wanted} > size) {
    move_together();
  }
  const int32_t capacity = end_ + int64_t{wanted} > size ? least : wanted;
  WR_CHECK_LE(end_ + int64_t{capacity}, size);
  move(segment, end_, capacity);
  end_ += capacity;
  note_change(row, 0);
}

// Segments move towards the front in order, so none is overwritten before it has moved.
void TableSegments::move_together() {
  order_.clear();
  for (size_t row = 0; row < rows_.size(); ++row) {
    if (rows_[row].used > 0) {
      order_.push_back(static_cast<int32_t>(row));
    } else {
      rows_[row].capacity = 0;
    }
  }
  std::ranges::sort(
      order_, {}, [this](int32_t row) { return rows_[static_cast<size_t>(row)].begin; });
  end_ = 0;
  for (const int32_t row : order_) {
    Segment& segment = rows_[static_cast<size_t>(row)];
    const int32_t capacity = round_up(segment.used, limits_.unit);
    if (segment.begin != end_) {
      move(segment, end_, capacity);
      note_change(row, 0);
    }
    segment.capacity = capacity;
    end_ += capacity;
  }
}

void TableSegments::move(Segment& segment, int32_t to, int32_t capacity) {
  const auto from = cells_.begin() + segment.begin;
  const auto target = cells_.begin() + to;
  if (to < segment.begin) {
    std::copy(from, from + segment.used, target);
  } else {
    std::copy_backward(from, from + segment.used, target + segment.used);
  }
  segment.begin = to;
  segment.capacity = capacity;
  segment.moved = true;
}

void TableSegments::stage(StagedWrites& staged, int32_t cells, int32_t begins, int32_t group) {
  for (const int32_t row : changed_) {
    Segment& segment = rows_[static_cast<size_t>(row)];
    const int32_t first = std::exchange(segment.first_changed, kUnchanged);
    if (std::exchange(segment.moved, false)) {
      staged.stage(begins, RowId{row}, group, 1)[0] = segment.begin;
    }
    const int32_t count = segment.used - first;
    if (count > 0) {
      const auto from = cells_.begin() + segment.begin + first;
      std::copy_n(
          from, count, staged.stage(cells, RowId{row}, segment.begin + first, count).begin());
    }
  }
  changed_.clear();
}

}  // namespace warprow
