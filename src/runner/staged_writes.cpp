// SPDX-License-Identifier: Apache-2.0
#include "runner/staged_writes.h"

#include "base/check.h"

#include <algorithm>
#include <tuple>

namespace warprow {

int32_t StagedTables::add(int32_t* cells,
                          int64_t row_stride,
                          int64_t max_writes,
                          int64_t max_values) {
  WR_CHECK_LT(num_tables_, kMaxStagedTables);
  max_writes_ += max_writes;
  max_values_ += max_values;
  tables_[num_tables_] = {cells, row_stride};
  return num_tables_++;
}

StagedWrites::StagedWrites(int64_t max_writes, int64_t max_values)
    : max_writes_(max_writes), max_values_(max_values) {
  pending_.reserve(static_cast<size_t>(max_writes));
  values_.reserve(static_cast<size_t>(max_values));
}

std::span<int32_t> StagedWrites::stage(int32_t table, RowId row, int32_t start, int32_t count) {
  WR_CHECK_LT(pending_.size(), max_writes_);
  WR_CHECK_LE(values_.size() + static_cast<size_t>(count), max_values_);
  const auto begin = static_cast<int32_t>(values_.size());
  pending_.push_back(
      {table, index_of(row), static_cast<int32_t>(pending_.size()), {start, count, begin}});
  values_.resize(values_.size() + static_cast<size_t>(count));
  return std::span(values_).subspan(static_cast<size_t>(begin));
}

int64_t StagedWrites::max_packed_bytes(int64_t max_writes, int64_t max_values) {
  return max_writes * static_cast<int64_t>(sizeof(StagedGroup) + sizeof(StagedWrite)) +
         max_values * static_cast<int64_t>(sizeof(int32_t));
}

StagedWrites::Packed StagedWrites::pack(std::byte* dst) {
  Packed packed;
  if (pending_.empty()) {
    return packed;
  }
  std::sort(pending_.begin(), pending_.end(), [](const Pending& a, const Pending& b) {
    return std::tie(a.table, a.row, a.order) < std::tie(b.table, b.row, b.order);
  });
  auto* groups = reinterpret_cast<StagedGroup*>(dst);
  for (const Pending& pending : pending_) {
    const int32_t end = pending.write.start + pending.write.count;
    StagedGroup* last = packed.num_groups == 0 ? nullptr : &groups[packed.num_groups - 1];
    if (last == nullptr || last->table != pending.table || last->row != pending.row) {
      const auto at = static_cast<int32_t>(&pending - pending_.data());
      groups[packed.num_groups++] = {pending.table, pending.row, at, 1, pending.write.start, end};
      continue;
    }
    ++last->num_writes;
    last->first_cell = std::min(last->first_cell, pending.write.start);
    last->end_cell = std::max(last->end_cell, end);
  }
  packed.writes_offset = packed.num_groups * static_cast<int64_t>(sizeof(StagedGroup));
  auto* writes = reinterpret_cast<StagedWrite*>(dst + packed.writes_offset);
  for (size_t i = 0; i < pending_.size(); ++i) {
    writes[i] = pending_[i].write;
  }
  packed.values_offset =
      packed.writes_offset + static_cast<int64_t>(pending_.size() * sizeof(StagedWrite));
  std::memcpy(dst + packed.values_offset, values_.data(), values_.size() * sizeof(int32_t));
  packed.bytes = packed.values_offset + static_cast<int64_t>(values_.size() * sizeof(int32_t));
  pending_.clear();
  values_.clear();
  return packed;
}

}  // namespace warprow
