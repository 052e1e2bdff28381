// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"
#include "runner/ops/apply_staged_writes.h"

#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

namespace warprow {

// The device tables that staged writes reach, and the most that one step may stage for them. The owner of a table
// adds it at construction and keeps its index.
//
// Thread: the runner's.
// Invariant: at most kMaxStagedTables; a check fails for one more.
class StagedTables {
 public:
  // cells dev i32 [rows, row_stride]; max_writes and max_values: limits of one step.
  int32_t add(int32_t* cells, int64_t row_stride, int64_t max_writes, int64_t max_values);

  [[nodiscard]] std::span<const StagedTable> tables() const {
    return {tables_, static_cast<size_t>(num_tables_)};
  }
  [[nodiscard]] int64_t max_writes() const { return max_writes_; }
  [[nodiscard]] int64_t max_values() const { return max_values_; }

 private:
  StagedTable tables_[kMaxStagedTables];
  int32_t num_tables_ = 0;
  int64_t max_writes_ = 0;
  int64_t max_values_ = 0;
};

// The only way in which the host changes device tables: it stages (table, row, start, values) diffs, packs them
// into the step's upload, and one operation scatters them (ops/apply_staged_writes.h).
//
// Owns: the diffs of one step.
// Thread: the runner's.
// Invariant: capacity is fixed at construction; staging never allocates. Of two writes to a cell
// the later wins.
class StagedWrites {
 public:
  StagedWrites(int64_t max_writes, int64_t max_values);

  // Returns room for the `count` values of one write; the caller must fill it at once.
  std::span<int32_t> stage(int32_t table, RowId row, int32_t start, int32_t count);
  // A struct of whole words at the start of a row.
  template <typename T>
  void stage_struct(int32_t table, RowId row, const T& value) {
    static_assert(sizeof(T) % sizeof(int32_t) == 0 && std::is_trivially_copyable_v<T>);
    std::memcpy(stage(table, row, 0, sizeof(T) / sizeof(int32_t)).data(), &value, sizeof(T));
  }

  [[nodiscard]] bool empty() const { return pending_.empty(); }
  [[nodiscard]] static int64_t max_packed_bytes(int64_t max_writes, int64_t max_values);

  // The layout that pack() wrote, as offsets into the packed bytes.
  struct Packed {
    int32_t num_groups = 0;
    int64_t writes_offset = 0;  // groups lie at 0
    int64_t values_offset = 0;
    int64_t bytes = 0;
  };
  // Writes groups, writes and values to dst and clears the staged diffs.
  Packed pack(std::byte* dst);

 private:
  struct Pending {
    int32_t table;
    int32_t row;
    int32_t order;
    StagedWrite write;
  };

  int64_t max_writes_;
  int64_t max_values_;
  std::vector<Pending> pending_;
  std::vector<int32_t> values_;
};

}  // namespace warprow
