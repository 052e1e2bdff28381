// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "device/stream.h"
#include "kernels/attention/flashinfer/planned_attention.h"

#include <cstddef>
#include <cstdint>

namespace warprow::cuda {

// Shared by the files behind planned_attention.h. Kernels take these structs by value.

// The first rows of a batch have one token each (decode rows; such a row's token has the row's index in the
// batch). The other rows have any number of tokens (extend rows).

// Block tables of the decode rows, in pages of `page_size` tokens. A block of b tokens is b / page_size
// pages, and page p begins p * page_stride elements into the cache. The page tables have the same order and
// gaps as the block tables in their pool.
struct DecodeTables {
  // dev [max_rows + num_pages]: each row's first page as an index into this array, then the pages.
  int32_t* pages = nullptr;
  uint32_t* lens = nullptr;      // dev [max_rows]; 0: padding
  uint32_t* arrivals = nullptr;  // dev [max_rows * num_kv_heads]; 0 between launches
  int32_t max_rows = 0;
  int32_t max_pages = 0;  // of a row
  int32_t page_size = 0;
  int64_t page_stride = 0;
};

// Query tiles of the extend rows, repeated per query head, in one list per CTA: CTA c works on items
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

constexpr int32_t kMaxExtendTiles = 4096;  // tiles of all rows, without heads, that a plan can sort
constexpr int32_t extend_tile_q(int32_t head_dim) { return head_dim == 64 ? 192 : 128; }

// FlashInferLimits::fa2: the rows of a batch that one launch covers, either the decode rows or the others.
// The (query, head) pairs of its rows are split into tiles of tile_q pairs. If the part is split, the keys of
// its rows are split into chunks.
struct Fa2Part {
  int32_t first_row = 0, num_rows = 0;
  int32_t first_tok = 0, num_toks = 0;
  int32_t tile_q = 16;    // 16, 64 or 128
  int32_t num_items = 0;  // upper bound of the rows' (tile, chunk) pairs: the grid
  bool split = false;
};
// Computed from padded counts alone. Batch-invariant batches have no decode part.
Fa2Part fa2_decode_part(const FlashInferLimits& limits, int32_t num_rows);
Fa2Part fa2_extend_part(const FlashInferLimits& limits,
                        int32_t num_decode_rows,
                        int32_t num_rows,
                        int32_t num_toks,
                        bool batch_invariant);
// Items that splitting may add to the tiles: two CTAs an SM, over all KV heads.
int32_t fa2_extra_items(const FlashInferLimits& limits);

// The kernel's work lists for a part. Rows and tokens are counted from the part's first.
struct Fa2Work {
  int32_t* row = nullptr;            // dev [max_items]
  int32_t* tile = nullptr;           // dev [max_items]
  int32_t* chunk = nullptr;          // dev [max_items]
  bool* valid = nullptr;             // dev [max_items]
  int32_t* item_begin = nullptr;     // dev [max_rows + 1]
  int32_t* table_begin = nullptr;    // dev [max_rows + 1] first cell of a row's block table
  int32_t* last_page_len = nullptr;  // dev [max_rows]
  int32_t* partial_begin = nullptr;  // dev [max_rows + 1] first partial output of a row, if split
  int32_t* merge_begin = nullptr;    // dev [max_toks + 1] first partial output of a token, if split
  int32_t* chunk_size = nullptr;     // dev [1] keys
  uint32_t* num_toks = nullptr;      // dev [1] without padding
};
struct Fa2Partials {
  std::byte* out = nullptr;  // dev bf16 [max_partials, num_q_heads, head_dim]
  float* lse = nullptr;      // dev [max_partials, num_q_heads], base 2
};

struct FlashInferScratch {
  // The Hopper kernels
  DecodeTables tables;
  ExtendWork work;
  std::byte* partials = nullptr;  // of the decode rows' splits
  // FlashInferLimits::fa2
  Fa2Work fa2_decode, fa2_extend;
  Fa2Partials fa2_partials;
};
// Places the arrays in a scratch at `base`; returns the scratch's size.
size_t flashinfer_scratch_layout(const FlashInferLimits& limits,
                                 std::byte* base,
                                 FlashInferScratch* scratch);

// How a decode row's keys are split over CTAs: at most `most` CTAs, each with at least min_tiles tiles of 64
// keys.
struct XqaSplits {
  int32_t most = 1;
  int32_t min_tiles = 1;
};
XqaSplits xqa_splits(int32_t num_rows, const FlashInferLimits& limits);

struct AttentionPlanParams {
  BlockTableView block_table;
  const int32_t* idx_mapping;
  const int32_t* query_start_loc;
  const int32_t* seq_lens;
  int64_t block_stride;  // elements
  int32_t block_size;
  int32_t num_rows, num_decode_rows;
  int32_t num_heads, num_kv_heads;
  int32_t window;       // this and the next are for FA2 only; 0: none
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
// Extend rows; args.block_table is read in place. One instance for each head size (cmake/stubs.cmake).
template <int kHeadDim>
void flashinfer_extend(Stream& stream, const FlashInferArgs& args, const ExtendWork& work);
// Decode or extend rows, one part a launch; args.block_table is read in place.
template <int kHeadDim>
void flashinfer_fa2(Stream& stream,
                    const FlashInferArgs& args,
                    const Fa2Part& part,
                    const Fa2Work& work,
                    const Fa2Partials& partials);

}  // namespace warprow::cuda
