// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "device/stream.h"
#include "kernels/attention/kv_view.h"
#include "kernels/attention/native/parts.h"

#include <cstddef>
#include <cstdint>

namespace warprow::cuda {

// Shared by the native kernels. Kernels take these structs by value.

constexpr int32_t kMaxScheduledRows = 3072;  // their prefix sums are in shared memory
constexpr int32_t kMaxDecodeBlocks = 320;    // of a decode grid
constexpr int32_t kMaxParts =
    16 * kMaxDecodeBlocks;                // partial sums of split chunks, times KV heads
constexpr int32_t kMaxPromptParts = 640;  // partial sums of split prompt items
constexpr int32_t kPromptRows = 128;      // query-head rows of an item on Hopper
constexpr int32_t kSegmentToks = 16;      // aligned tokens that are always in one kernel block
constexpr int32_t kDecodeTile = 16;       // tokens of a decode tile
constexpr int32_t kDecodeWarps = 4;
constexpr int32_t kDecodeWarpsPerSm = 8;  // CTAs of one warp
constexpr int32_t kMaxGroup = 16;
// (query, head) pairs of a KV head that a decode CTA computes at once.
constexpr int32_t kMaxDecodePairs = 24;
constexpr int32_t kPrefillKeys =
    kPartTile;  // keys of a prefill tile, aligned to absolute positions

// The elements of the cache.
enum class KvFormat : uint8_t { kBF16, kE4M3, kE5M2 };

// How the queries of a decode row are split: into `chunks` chunks of up to `queries` queries.
struct DecodeChunks {
  int32_t queries, chunks;
};
WR_HD constexpr DecodeChunks decode_chunks(int32_t group, int32_t decode_len) {
  const int32_t fit = kMaxDecodePairs / group;
  const int32_t queries = decode_len < fit ? decode_len : fit;
  return {queries, (decode_len + queries - 1) / queries};
}

// Number of key tiles that the last num_toks queries of a sequence see. In parts the first tile begins a tile of the
// order of sums.
WR_HD inline int32_t decode_tiles(int32_t seq_len,
                                  int32_t num_toks,
                                  int32_t window,
                                  bool in_parts) {
  if (seq_len <= 0 || num_toks <= 0) {
    return 0;
  }
  const int32_t seen = window + num_toks - 1;
  const int32_t first = window > 0 && seq_len > seen ? seq_len - seen : 0;
  const int32_t aligned = in_parts ? first / kPartTile * kPartTile : first;
  return (seq_len + kDecodeTile - 1) / kDecodeTile - aligned / kDecodeTile;
}

// A run of key tiles for one chunk of a decode row's queries. An item and a KV head make one piece of work.
struct DecodeItem {
  int32_t chunk;                // index among the chunks of all decode rows
  int32_t table_begin;          // first cell of the row's block table
  int32_t first_tok, num_toks;  // the queries, in the batch
  int32_t seq_len;              // keys that the last query sees
  int32_t num_old_keys;         // keys from before this step
  int32_t tile, num_tiles;      // tile: the first one, counted from the sequence's start
  // part: how many of the chunk's partial sums precede the item's. num_parts: how many the chunk has; 1: it is not split.
  // An item writes one partial sum or, in parts, one for each of its parts.
  int32_t part, num_parts;
  // Index of the chunk's first partial sums among those of all split chunks.
  int32_t first_part;
};
constexpr int32_t kDecodeItemInts = sizeof(DecodeItem) / sizeof(int32_t);

// CTA b of the grid takes pieces b and b + num_blocks (piece i: item i / heads, head i % heads), then the
// next free piece each time. Pieces are taken dynamically because SMs differ in memory throughput by a factor
// of two.
struct DecodeCounts {
  int32_t num_pieces;
  uint32_t taken;  // pieces taken after the first two rounds; wraps to 0 at the end of a launch
  uint32_t prefill_taken;  // pieces of prompt items taken after the first round; wraps too
};

// The arrays in the scratch of one step and KV group.
struct NativeScratch {
  DecodeItem* items;  // [max_chunks + kMaxParts]
  DecodeCounts* counts;
  int32_t* arrivals;       // [max_chunks * num_kv_heads * kDecodeWarps], 0 between launches
  int32_t* prefill_tiles;  // [max_rows + 1] query tiles before each row of the prefill part
  // [kMaxPromptParts] of split prompt items, two for each, 0 between launches
  int32_t* prompt_arrivals;
  // [kMaxParts, partial_floats] of the decode kernel or [kMaxPromptParts, prompt_part_floats] of the prompt kernel
  float* partials;
};
// Floats of partial sums: output, maximum and sum of every (query, head) pair of a chunk. In parts each warp has its own
// maxima and sums, and pairs are stored by twos.
WR_HD constexpr int32_t partial_floats(int32_t pairs, int32_t head_dim) {
  return (pairs + 1) / 2 * 2 * (head_dim + 2 * kDecodeWarps);
}

// The same of a part of a prompt item: every consumer thread's maxima and sums of two rows, then its outputs.
WR_HD constexpr int32_t prompt_part_floats(int32_t head_dim) {
  return kPromptRows * (head_dim + 8);
}

// How Hopper's prompt kernel, in parts, splits items by keys, so that few long ones occupy all SMs: into one piece for each `piece_tiles`
// tiles of kPartTile keys, up to `pieces`. A split item has room for `slots` partial sums in scratch.
struct PromptSplit {
  int32_t pieces = 1, piece_tiles = 0, slots = 0;
};
// For so many items, at least one, of up to most_tiles tiles each. One that needs more slots than that stays whole.
PromptSplit prompt_split(int64_t items, int32_t most_tiles, int32_t num_sms);

// Byte offsets of the arrays above; items come first. Calls with fewer rows than planned have smaller offsets
// for the arrays after the counters.
struct ScratchLayout {
  size_t counts = 0, arrivals = 0, prefill_tiles = 0, prompt_arrivals = 0, partials = 0, bytes = 0;
};
ScratchLayout native_scratch_layout(
    int32_t num_kv_heads, int32_t group, int32_t head_dim, int32_t max_rows, int32_t decode_len);

struct ScheduleParams {
  BlockTableView block_table;
  const int32_t* idx_mapping;
  const int32_t* query_start_loc;
  const int32_t* seq_lens;
  NativeScratch scratch;
  int32_t num_rows, num_decode_rows;
  int32_t decode_len;  // tokens of a decode row, at most
  DecodeChunks chunks;
  int32_t num_kv_heads, group;
  int32_t window;                 // 0: none
  int32_t num_blocks;             // of the decode grid
  int32_t prefill_rows_per_tile;  // query-head rows of a prefill tile
  bool in_parts;
};

// What the decode kernel does before attention: norms and rotation of queries and this step's keys, and the KV write
// (kernels/rope/rope_kv_write.h). In a token's row, its keys and values follow its queries.
struct DecodeRope {
  bool on = false;
  bool writes_kv;  // else an earlier layer has written keys and values
  const float* cos;
  const float* sin;
  int64_t cos_stride, sin_stride;  // elements, by token
  const float* q_norm;             // null: none
  const float* k_norm;
  const float* v_norm;
  int32_t rot_dim;
  float norm_eps;
};

// The arguments of one layer's call, for decode and prefill kernels.
struct NativeParams {
  const void* q;       // bf16
  void* out;           // bf16
  float* lse;          // null: not computed
  const float* sinks;  // null: none
  char* k;
  char* v;
  const float* k_scales;  // by KV head, of an 8-bit cache
  const float* v_scales;
  BlockTableView block_table;
  const int32_t* idx_mapping;
  const int32_t* query_start_loc;
  const int32_t* seq_lens;
  int64_t q_stride, out_stride, lse_stride;      // elements
  int64_t block_bytes, head_bytes, token_bytes;  // strides of the cache
  NativeScratch scratch;
  int32_t block_size, num_kv_heads, group;
  int32_t decode_pairs;       // of a chunk, at most
  uint32_t tiles_reciprocal;  // 2^32 / (decode tiles of a block), rounded up; 0: one tile
  int32_t first_prefill_row, num_rows;
  PromptSplit prompt_split;
  int32_t schedule_window;  // the schedule's window
  int32_t window;
  float scale, soft_cap;
  bool causal;
  bool settled;     // ScheduledAttentionArgs::settled
  bool in_parts;    // sums in parts (parts.h), in the order of order.cuh
  DecodeRope rope;  // in parts, with a bf16 cache and decode rows alone

  // The end of the keys that the query at a position of a row with seq_len keys sees.
  [[nodiscard]] WR_HD int32_t end_key(int32_t position, int32_t seq_len) const {
    const int32_t ahead = causal ? 1 : window;
    return ahead > 0 && position + ahead < seq_len ? position + ahead : seq_len;
  }
};

// The launchers. One instance for each head size and format (cmake/stubs.cmake). With an 8-bit cache all kernels sum in
// parts.
void native_schedule(Stream& stream, const ScheduleParams& params);
// kTma: the tiles are loaded by TMA, for Hopper; else by cp.async.
template <int kDim, bool kTma>
void native_decode(Stream& stream, const NativeParams& params, int32_t num_blocks);
// The same for Hopper, in parts.
template <int kDim, KvFormat kFormat>
void native_part_decode(Stream& stream, const NativeParams& params, int32_t num_blocks);
// The same for up to 8 (query, head) pairs a chunk, where there are many pieces; a CTA is one warp.
template <int kDim, KvFormat kFormat>
void native_warp_decode(Stream& stream, const NativeParams& params, int32_t num_blocks);
// num_tiles: no less than the number of tiles in the schedule. wide: tiles of 128 query-head rows instead of
// 64; not in parts.
template <int kDim, KvFormat kFormat>
void native_prefill(Stream& stream, const NativeParams& params, int64_t num_tiles, bool wide);
// For Hopper: tiles of 128 query-head rows, one CTA an SM.
template <int kDim>
void native_hopper_prefill(Stream& stream, const NativeParams& params, int32_t num_blocks);

}  // namespace warprow::cuda
