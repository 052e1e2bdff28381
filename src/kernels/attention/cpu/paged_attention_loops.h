// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/attention/cpu/cache_kind.h"
#include "kernels/simd/dispatch.h"

#include <cstdint>

namespace warprow::cpu {

// Functions are static: contracts.isa-files.

// Keys in a tile of the online softmax; tiles start at multiples of it.
constexpr int32_t kKeyTile = 64;
// (query, head) pairs that share a loaded key tile, as far as the group size allows. AMX multiplies two tiles of 16.
constexpr int32_t kQueryLines = 64;
constexpr int32_t kAmxQueryLines = 32;
// Rows in scratch are padded to this many floats, enough for every instruction set.
constexpr int32_t kRowPad = 16;

// Each part of the keys is accumulated on its own, and the states of the parts are merged in order. The
// bounds of a part depend on positions alone, so the result does not depend on which threads compute the
// parts: an item can be one part of a long row. A part is 256 keys long. From position 4096 on, it is an
// eighth of the largest power of two up to its position: the parts stay few, and each is a small share of a
// row.
constexpr int32_t kLeastPart = 4 * kKeyTile;
static constexpr int32_t part_end(int32_t position) {
  int32_t size = kLeastPart;
  while (position / 16 >= size) {
    size *= 2;
  }
  return (position / size + 1) * size;
}

// One item of work: consecutive queries of one batch row, for the query heads of one KV head.
struct AttentionTile {
  const float* q;  // first query, first head of the group
  int64_t q_stride;
  float* out;
  int64_t out_stride;
  float* lse;  // null: not computed
  int64_t lse_stride;
  const float* sinks;     // of the group's heads; null: none
  const int32_t* blocks;  // the row's kernel block ids
  const void* k;          // the KV head's first element in block 0
  const void* v;
  int64_t block_stride;
  int64_t token_stride;
  float* scratch;  // attention_scratch_floats(group, head_dim_k, head_dim_v)
  // attention_state_floats; null: the item covers all parts of its queries and writes `out`.
  float* state;
  // The next item on this thread, for prefetch; null: unknown.
  const AttentionTile* next;
  int32_t block_size;
  int32_t group;  // query heads per KV head
  int32_t head_dim_k;
  int32_t head_dim_v;
  int32_t num_queries;
  int32_t first_position;  // of the first query
  int32_t seq_len;
  int32_t part_begin;  // if state is set: the positions of the item's part
  int32_t part_end;
  int32_t window;  // 0: none
  float scale;     // of a cache with scales times that of its keys
  float v_scale;   // of the output
  float soft_cap;  // 0: none
  bool causal;
  CacheKind kind;
};

static constexpr int32_t padded_row(int32_t n) { return (n + kRowPad - 1) / kRowPad * kRowPad; }
// Queries in a full tile.
static constexpr int32_t queries_per_tile(int32_t group, int32_t lines = kQueryLines) {
  return group >= lines ? 1 : lines / group;
}
// Floats of the state of one part or of all: accumulators, maxima and sums of `lines` (query, head) pairs.
static constexpr int64_t attention_state_floats(int64_t lines, int32_t dim_v) {
  return padded_row(static_cast<int32_t>(lines * (padded_row(dim_v) + 2)));
}
// Key tile and value tile; queries and weights of each line; the state of a part and of the total.
static constexpr int64_t attention_scratch_floats(int32_t group, int32_t dim_k, int32_t dim_v) {
  const int64_t lines = int64_t{queries_per_tile(group)} * group;
  return (kKeyTile + lines) * padded_row(dim_k) + kKeyTile * padded_row(dim_v) + lines * kKeyTile +
         2 * attention_state_floats(lines, dim_v);
}

// Computes all parts of an item into its output, or its one part into its state.
WR_ISA_DECLARE(void, paged_attention_tile, (const AttentionTile& a));
// Merges the states of an item's parts into its output. The states are attention_state_floats apart.
WR_ISA_DECLARE(void,
               paged_attention_merge,
               (const AttentionTile& a, const float* states, int32_t num_parts));
#if defined(__x86_64__)
void paged_attention_tile_avx512bf16(const AttentionTile& a);
void paged_attention_merge_avx512bf16(const AttentionTile& a,
                                      const float* states,
                                      int32_t num_parts);
void paged_attention_tile_amx(const AttentionTile& a);
void paged_attention_merge_amx(const AttentionTile& a, const float* states, int32_t num_parts);
#endif

}  // namespace warprow::cpu
