// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/communicator.h"
#include "device/cpu/compute_pool.h"
#include "device/view.h"

#include <cstdint>

namespace warprow::cpu {

// The blocks of one Communicator::exchange_columns: which part of `mine` a rank gets and where its answer goes in
// `all`. Sender and receiver agree on the shape of a block. A block's elements are counted row by row.
struct ColumnExchange {
  GroupPlace place;
  View<const float, 2> mine;  // [n, part]
  View<float, 2> all;         // [own rows, whole]

  // The columns of `all` that a rank has.
  [[nodiscard]] Share columns_of(int32_t rank) const;
  // Of mine: the rows of rank `to`, without padding columns.
  [[nodiscard]] View<const float, 2> outgoing(int32_t to) const;
  // Of all: the columns of rank `from`.
  [[nodiscard]] View<float, 2> incoming(int32_t from) const;
  // The number of elements of the largest block of any two ranks.
  [[nodiscard]] int64_t largest_block() const;
};

inline int64_t num_elements(View<const float, 2> block) { return block.shape[0] * block.shape[1]; }
// Copies elements [from.begin, from.end) of a block to adjacent memory, and back.
void pack(ComputePool& pool, View<const float, 2> block, Share elements, float* out);
void unpack(ComputePool& pool, const float* in, Share elements, View<float, 2> block);

}  // namespace warprow::cpu
