// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "device/stream.h"
#include "kernels/attention/flashinfer_attention.h"

#include <cstddef>
#include <cstdint>

namespace warprow::cuda {

// What the files behind flashinfer_attention.h share. Kernels take these structs by value.

// A batch's first rows have one token each (decode rows, whose token is their place in the batch),
// the others any number (extend rows).

// Block tables of the decode rows, in pages of `page_size` tokens: a block of b tokens
// is b / page_size pages, and page p begins p * page_stride elements into the cache. They lie as the block
// tables lie in their pool.
struct DecodeTables {
  int32_t* pages =
      nullptr;  // dev [max_rows + num_pages]: begins, counted from here, then the pages
  uint32_t* lens = nullptr;      // dev [max_rows] 0: padding
  uint32_t* arrivals = nullptr;  // dev [max_rows * num_kv_heads] 0 between launches
  int32_t max_rows = 0;
  int32_t max_pages = 0;  // of a row
  int32_t page_size = 0;
  int64_t page_stride = 0;
};

// Query tiles of the extend rows, once per query head, in lists by CTA: CTA c works on the items
// [work_begin[c], work_begin[c + 1]).
struct ExtendWork {
  static constexpr int32_t kArrays = 7;
  enum Array : int32_t { kTile, kHead, kQueryStart, kTableStart, kQueryLen, kKvLen, kBatchIdx };

  int32_t* work_begin = nullptr;  // dev [num_ctas + 1]
  int32_t* items = nullptr;       // dev [kArrays, max_items]
  int32_t max_items = 0;
  int32_t num_ctas = 0;
  int32_t tile_q = 0;

  [[nodiscard]] WR_HD int32_t* item(Array array) const {
    return items + int64_t{array} * max_items;
  }
};

constexpr int32_t kMaxExtendTiles = 4096;  // rows' tiles, without heads, that one plan sorts
constexpr int32_t extend_tile_q(int32_t head_dim) { return head_dim == 64 ? 192 : 128; }

// FlashInferLimits::fa2: rows of a batch that one launch serves, decode rows or the others. Its
// queries' heads are cut into tiles of tile_q (query, head) pairs, its rows' keys into chunks if it
// is split.
struct Fa2Part {
  int32_t first_row = 0, num_rows = 0;
  int32_t first_tok = 0, num_toks = 0;
  int32_t tile_q = 16;    // 16, 64 or 128
  int32_t num_items = 0;  // at least (tile, chunk) pairs of the rows: the grid
  bool split = false;
};
// From padded counts alone.
Fa2Part fa2_decode_part(const FlashInferLimits& limits, int32_t num_rows, bool batch_invariant);
Fa2Part fa2_extend_part(const FlashInferLimits& limits,
                        int32_t num_decode_rows,
                        int32_t num_rows,
                        int32_t num_toks,
                        bool batch_invariant);
// Items that a split may add to the tiles: two CTAs a multiprocessor, over all KV heads.
int32_t fa2_extra_items(const FlashInferLimits& limits);

// What the kernel is given of a part. Rows and tokens count from the part's first.
struct Fa2Work {
  int32_t* row = nullptr;            // dev [max_items]
  int32_t* tile = nullptr;           // dev [max_items]
  int32_t* chunk = nullptr;          // dev [max_items]
  bool* valid = nullptr;             // dev [max_items]
  int32_t* item_begin = nullptr;     // dev [max_rows + 1]
  int32_t* table_begin = nullptr;    // dev [max_rows + 1] where a row's block table begins
  int32_t* last_page_len = nullptr;  // dev [max_rows]
  int32_t* partial_begin = nullptr;  // dev [max_rows + 1] of a row's partial outputs, if split
  int32_t* merge_begin = nullptr;    // dev [max_toks + 1] of a token's partial outputs, if split
  int32_t* chunk_size = nullptr;     // dev [1] keys
  uint32_t* num_toks = nullptr;      // dev [1] without padding
};
struct Fa2Partials {
  std::byte* out = nullptr;  // dev bf16 [max_partials, num_q_heads, head_dim]
  float* lse = nullptr;      // dev [max_partials, num_q_heads], base 2
};

struct FlashInferScratch {
  // The Hopper kernels:
  DecodeTables tables;
  ExtendWork work;
  std::byte* partials = nullptr;  // of the decode rows' splits
  // FlashInferLimits::fa2:
  Fa2Work fa2_decode, fa2_extend;
  Fa2Partials fa2_partials;
};
// Where things lie in a scratch at `base`; returns its size.
size_t flashinfer_scratch_layout(const FlashInferLimits& limits,
                                 std::byte* base,
                                 FlashInferScratch* scratch);

// How a decode row's keys are shared out: to CTAs with at least min_tiles tiles of 64 keys each, as
// long as there are not more than `most`.
struct XqaSplits {
  int32_t most = 1;
  int32_t min_tiles = 1;
};
XqaSplits xqa_splits(int32_t num_rows, const FlashInferLimits& limits, bool batch_invariant);

struct AttentionPlanParams {
  BlockTableView block_table;
  const int32_t* idx_mapping;
  const int32_t* query_start_loc;
  const int32_t* seq_lens;
  int64_t block_stride;  // elements
  int32_t block_size;
  int32_t num_rows, num_decode_rows;
  int32_t num_heads, num_kv_heads;
  int32_t window;       // FA2 only, as the next one; 0: none
  int32_t extra_items;  // fa2_extra_items
};
void plan_decode_tables(Stream& stream,
                        const AttentionPlanParams& params,
                        const DecodeTables& tables);
void plan_extend_work(Stream& stream, const AttentionPlanParams& params, const ExtendWork& work);

void plan_fa2_work(Stream& stream,
                   const AttentionPlanParams& params,
                   const Fa2Part& part,
                   const Fa2Work& work);

// Decode rows.
void xqa_decode(Stream& stream,
                const FlashInferArgs& args,
                const DecodeTables& tables,
                void* partials,
                XqaSplits splits);
// Extend rows; args.block_table is read in place.
void flashinfer_extend_64(Stream& stream, const FlashInferArgs& args, const ExtendWork& work);
void flashinfer_extend_128(Stream& stream, const FlashInferArgs& args, const ExtendWork& work);
// Either, a part at a time; args.block_table is read in place.
void flashinfer_fa2_64(Stream& stream,
                       const FlashInferArgs& args,
                       const Fa2Part& part,
                       const Fa2Work& work,
                       const Fa2Partials& partials);
void flashinfer_fa2_128(Stream& stream,
                        const FlashInferArgs& args,
                        const Fa2Part& part,
                        const Fa2Work& work,
                        const Fa2Partials& partials);

}  // namespace warprow::cuda
