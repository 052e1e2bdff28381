// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/cuda/peer_group.h"
#include "device/stream.h"
#include "kernels/linear/linear.h"

#include <cstddef>
#include <cstdint>

namespace warprow::cuda {

// values[i] = the sum over ranks in rank order, or add_to[i] += that sum if it is not null; i < n. The bits do not depend on n.
// With `next`, the first half of a norm of add_to's rows follows (kernels/linear/half_norm.h), of n / width rows.
struct PeerSum {
  float* values = nullptr;
  float* add_to = nullptr;
  int64_t n = 0;
  int32_t width = 0;  // of a row; with `next` a multiple of 64
  const HalfNorm* next = nullptr;
};
void sum_over_peers(Stream& stream, const PeerGroup& group, const PeerSum& sum);

// Rows of bytes at one rank. All sizes, strides and addresses are multiples of 4.
struct PeerRows {
  std::byte* at = nullptr;
  int64_t row_bytes = 0;
  int64_t stride = 0;
  int64_t bytes = 0;  // of all rows
  int32_t peer = 0;   // where they go to or come from
};

// Rows that go to other ranks, rows that come from them, and rows that stay. For every rank that sends, the other
// receives as many bytes in the same operation, or in its next one with this rank.
struct PeerMoves {
  PeerRows out[kMaxPeers];
  PeerRows in[kMaxPeers];
  int32_t num_out = 0;
  int32_t num_in = 0;
  PeerRows own;  // from here
  PeerRows own_to;
};
void move_between_peers(Stream& stream, const PeerGroup& group, const PeerMoves& moves);

}  // namespace warprow::cuda
