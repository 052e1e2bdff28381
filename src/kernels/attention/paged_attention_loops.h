// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/simd/dispatch.h"

#include <cstdint>

namespace warprow::cpu {

constexpr int32_t kKeyTile =
    64;  // keys in a tile of the online softmax; tiles start at multiples of it
constexpr int32_t kQueryLines =
    32;  // (query, head) pairs that share a loaded key tile, where the group allows
constexpr int32_t kRowPad =
    16;  // rows in scratch are padded to this many floats, for every instruction set

// One item of work: consecutive queries of one batch row, for the query heads of one KV head.
struct AttentionTile {
  const float* q;  // first query, first head of the group
  int64_t q_stride;
  float* out;
  int64_t out_stride;
  float* lse;  // null: not wanted
  int64_t lse_stride;
  const float* sinks;     // of the group's heads; null: none
  const int32_t* blocks;  // the row's kernel block ids
  const void* k;          // the KV head's first element in block 0
  const void* v;
  int64_t block_stride;
  int64_t token_stride;
  float* scratch;  // attention_scratch_floats
  const AttentionTile*
      next;  // the item that follows on this thread, to be fetched ahead; null: unknown
  int32_t block_size;
  int32_t group;  // query heads per KV head
  int32_t head_dim_k;
  int32_t head_dim_v;
  int32_t num_queries;
  int32_t first_position;  // of the first query
  int32_t seq_len;
  int32_t window;  // 0: none
  float scale;
  float soft_cap;  // 0: none
  bool causal;
  bool bf16;
};

constexpr int32_t padded_row(int32_t n) { return (n + kRowPad - 1) / kRowPad * kRowPad; }
// Queries in a full tile.
constexpr int32_t queries_per_tile(int32_t group) {
  return group >= kQueryLines ? 1 : kQueryLines / group;
}
// Key tile, value tile; per line: query, accumulator, weights, maximum and sum.
constexpr int64_t attention_scratch_floats(int32_t group, int32_t dim_k, int32_t dim_v) {
  const int64_t lines = int64_t{queries_per_tile(group)} * group;
  return (kKeyTile + lines) * (padded_row(dim_k) + padded_row(dim_v)) + lines * (kKeyTile + 2) +
         kRowPad;
}

WR_ISA_DECLARE(void, paged_attention_tile, (const AttentionTile& a));

}  // namespace warprow::cpu
