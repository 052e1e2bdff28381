// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"

#include <cstdint>

namespace warprow::cuda {

// What the native kernels agree on. Plain types only: kernels take these structs by value.

constexpr int32_t kMaxScheduledRows =
    8192;  // the schedule kernel keeps a prefix sum in shared memory
constexpr int32_t kMaxDecodeBlocks = 512;  // of a decode grid; bounds the scratch
constexpr int32_t kSegmentToks = 16;       // tokens that surely lie in one kernel block
constexpr int32_t kDecodeTile = 16;        // tokens of a decode tile: the unit of shares
constexpr int32_t kDecodeWarps = 4;
constexpr int32_t kMinShareTiles = 16;  // a block is not given less, unless there is no more
constexpr int32_t kMaxGroup = 16;
constexpr int32_t kPrefillKeys = 64;  // keys of a prefill tile, aligned to absolute positions

// What one block of the decode grid works on: `num_tiles` tiles of consecutive (row, KV head) pairs,
// heads inside rows, from tile `tile` of pair (row, head) on.
struct DecodeShare {
  int32_t row, head, tile, num_tiles;
  // The blocks that share the first pair when it does not begin here, and the last block of the pair
  // with which the share ends.
  int32_t first_pair_first_block, first_pair_last_block, last_pair_last_block;
  int32_t unused;
};

// Where things lie in the scratch of one step and KV group.
struct NativeScratch {
  DecodeShare* shares;     // [num_blocks]
  int32_t* arrivals;       // [max_rows * num_kv_heads], 0 between launches
  int32_t* prefill_tiles;  // [max_rows + 1] query tiles before each row of the prefill part
  float* partials;         // [2 * num_blocks, partial_floats]
};
// Output, maximum and sum of every head of a group, in whole vectors of four.
WR_HD constexpr int32_t partial_floats(int32_t group, int32_t head_dim) {
  return (group * (head_dim + 2) + 3) / 4 * 4;
}

// Byte offsets of the above; shares come first. Calls with fewer rows than planned for put the parts
// after the counters earlier.
struct ScratchLayout {
  size_t arrivals = 0, prefill_tiles = 0, partials = 0, bytes = 0;
};
ScratchLayout native_scratch_layout(int32_t num_kv_heads,
                                    int32_t group,
                                    int32_t head_dim,
                                    int32_t max_rows);

struct ScheduleParams {
  const int32_t* idx_mapping;
  const int32_t* query_start_loc;
  const int32_t* seq_lens;
  NativeScratch scratch;
  int32_t num_rows, num_decode_rows;
  int32_t num_kv_heads, group;
  int32_t window;                 // 0: none
  int32_t num_blocks;             // of the decode grid
  int32_t prefill_rows_per_tile;  // query-head rows of a prefill tile
};

// One layer's call, for both kernels.
struct NativeParams {
  const void* q;       // bf16
  void* out;           // bf16
  float* lse;          // null: not wanted
  const float* sinks;  // null: none
  const char* k;
  const char* v;
  const int32_t* block_table;
  const int32_t* idx_mapping;
  const int32_t* query_start_loc;
  const int32_t* seq_lens;
  int64_t q_stride, out_stride, lse_stride, table_stride;  // elements
  int64_t block_bytes, head_bytes, token_bytes;            // strides of the cache
  NativeScratch scratch;
  int32_t block_size, num_kv_heads, group;
  int32_t first_prefill_row, num_rows;
  int32_t schedule_window;  // what the schedule was made with
  int32_t window;
  float scale, soft_cap;
  bool causal;
};

}  // namespace warprow::cuda
