// SPDX-License-Identifier: Apache-2.0
#include "comm/cpu/column_exchange.h"

#include <algorithm>
#include <cstring>

namespace warprow::cpu {
namespace {

// What a thread of the pool takes at a time.
constexpr int64_t kGrain = 32 << 10;

// Calls f(row, column, count, offset) for the parts of rows that make up the elements; offset counts from the first.
template <typename F>
void for_row_parts(ComputePool& pool, Share elements, int64_t width, const F& f) {
  pool.parallel_for(elements.size(), kGrain, [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t offset = begin; offset < end;) {
      const int64_t at = elements.begin + offset;
      const int64_t column = at % width;
      const int64_t count = std::min(width - column, end - offset);
      f(at / width, column, static_cast<size_t>(count), offset);
      offset += count;
    }
  });
}

}  // namespace

Share ColumnExchange::columns_of(int32_t rank) const {
  const int64_t part = mine.shape[1];
  const int64_t whole = all.shape[1];
  return {std::min(rank * part, whole), std::min((rank + 1) * part, whole)};
}

View<const float, 2> ColumnExchange::outgoing(int32_t to) const {
  const Share rows = place.share_of(to, mine.shape[0]);
  return make_strided(
      mine.row(rows.begin), rows.size(), columns_of(place.rank).size(), mine.stride[0]);
}

View<float, 2> ColumnExchange::incoming(int32_t from) const {
  const Share columns = columns_of(from);
  return make_strided(all.data + columns.begin, all.shape[0], columns.size(), all.stride[0]);
}

int64_t ColumnExchange::largest_block() const {
  return place.share_of(0, mine.shape[0]).size() * columns_of(0).size();
}

void pack(ComputePool& pool, View<const float, 2> block, Share elements, float* out) {
  for_row_parts(pool,
                elements,
                block.shape[1],
                [&](int64_t row, int64_t column, size_t count, int64_t offset) {
                  std::memcpy(out + offset, block.row(row) + column, count * sizeof(float));
                });
}

void unpack(ComputePool& pool, const float* in, Share elements, View<float, 2> block) {
  for_row_parts(pool,
                elements,
                block.shape[1],
                [&](int64_t row, int64_t column, size_t count, int64_t offset) {
                  std::memcpy(block.row(row) + column, in + offset, count * sizeof(float));
                });
}

}  // namespace warprow::cpu
