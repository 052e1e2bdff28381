// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"
#include "base/ids.h"

#include <cstdint>
#include <vector>

namespace warprow {

// The persistent rows: a stack of free ones, and a generation for each that counts how often it was given out.
//
// Owns: which rows are free.
// Thread: one, the scheduler's.
// Invariant: no two requests, and no two admissions of one request, ever have the same (row, generation) pair.
class RowAllocator {
 public:
  explicit RowAllocator(int32_t max_rows) : generations_(static_cast<size_t>(max_rows)) {
    free_.reserve(generations_.size());
    for (int32_t row = max_rows - 1; row >= 0; --row) {
      free_.push_back(RowId{row});
    }
  }

  [[nodiscard]] int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  [[nodiscard]] uint32_t generation(RowId row) const {
    return generations_[static_cast<size_t>(index_of(row))];
  }
  // The row that the next take() returns; at least one must be free.
  [[nodiscard]] RowId next() const { return free_.back(); }

  RowId take() {
    WR_CHECK(!free_.empty());
    const RowId row = free_.back();
    free_.pop_back();
    ++generations_[static_cast<size_t>(index_of(row))];
    return row;
  }
  void release(RowId row) { free_.push_back(row); }

 private:
  std::vector<RowId> free_;
  std::vector<uint32_t> generations_;  // [max_rows]
};

}  // namespace warprow
