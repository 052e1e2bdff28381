// SPDX-License-Identifier: Apache-2.0
// Plain arithmetic, kept out of the CUDA files, so that a build without CUDA can plan for a GPU.
#include "base/math.h"
#include "kernels/attention/flashinfer/params.h"

#include <algorithm>

namespace warprow {
namespace {

// Allocates aligned pieces from `base`; if base is null, only counts their bytes.
class Pieces {
 public:
  explicit Pieces(std::byte* base) : base_(base) {}
  template <typename T>
  T* take(int64_t n) {
    std::byte* piece = base_ == nullptr ? nullptr : base_ + bytes_;
    bytes_ += round_up(static_cast<size_t>(n) * sizeof(T), size_t{256});
    return reinterpret_cast<T*>(piece);
  }
  [[nodiscard]] size_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  size_t bytes_ = 0;
};

int32_t extend_tiles(const FlashInferLimits& limits) {
  return limits.max_toks / cuda::extend_tile_q(limits.kv.head_dim_k) + limits.max_rows;
}

// Per chunk (row, KV head, split): its heads' outputs in bf16, and their sums and maxima. Both parts are
// aligned to the size of a chunk's outputs.
int64_t partial_bytes(const FlashInferLimits& limits) {
  const KvLayerView& kv = limits.kv;
  int64_t chunks = 0;
  for (int32_t rows = 1; rows <= limits.max_rows; ++rows) {
    const int32_t most = cuda::xqa_splits(rows, limits).most;
    chunks = std::max(chunks, int64_t{rows} * kv.num_kv_heads * most);
  }
  const int64_t group = limits.num_q_heads / kv.num_kv_heads;
  const int64_t outputs = group * kv.head_dim_v * 2;
  return chunks * (outputs + group * 8) + 2 * outputs;
}

int32_t group_of(const FlashInferLimits& limits) {
  return limits.num_q_heads / limits.kv.num_kv_heads;
}

// Splits the keys if the tiles alone have too few CTAs to fill the device.
bool fa2_splits(const FlashInferLimits& limits, const cuda::Fa2Part& part) {
  return int64_t{part.num_toks} * group_of(limits) <
         int64_t{cuda::fa2_extra_items(limits)} * part.tile_q;
}

// Picks the larger tile if the rows fill it on average.
int32_t fa2_tile_q(int64_t pairs, int32_t num_rows) {
  return pairs > int64_t{64} * num_rows ? 128 : pairs > int64_t{16} * num_rows ? 64 : 16;
}

cuda::Fa2Work take_fa2_work(Pieces& pieces,
                            const FlashInferLimits& limits,
                            int32_t max_items,
                            int32_t max_toks) {
  cuda::Fa2Work work;
  work.row = pieces.take<int32_t>(max_items);
  work.tile = pieces.take<int32_t>(max_items);
  work.chunk = pieces.take<int32_t>(max_items);
  work.valid = pieces.take<bool>(max_items);
  work.item_begin = pieces.take<int32_t>(limits.max_rows + 1);
  work.table_begin = pieces.take<int32_t>(limits.max_rows + 1);
  work.last_page_len = pieces.take<int32_t>(limits.max_rows);
  work.partial_begin = pieces.take<int32_t>(limits.max_rows + 1);
  work.merge_begin = pieces.take<int32_t>(max_toks + 1);
  work.chunk_size = pieces.take<int32_t>(1);
  work.num_toks = pieces.take<uint32_t>(1);
  return work;
}

void take_fa2(Pieces& pieces, const FlashInferLimits& limits, cuda::FlashInferScratch* scratch) {
  const int32_t group = group_of(limits);
  const int32_t extra = cuda::fa2_extra_items(limits);
  const int32_t row_tiles = ceil_div(group, 16);
  scratch->fa2_decode =
      take_fa2_work(pieces, limits, limits.max_rows * row_tiles + extra, limits.max_rows);
  // If the tile is 16, a row has at most 16 pairs on average.
  const auto tiles = static_cast<int32_t>(int64_t{limits.max_toks} * group / 64);
  scratch->fa2_extend =
      take_fa2_work(pieces, limits, tiles + 2 * limits.max_rows + extra, limits.max_toks);
  // A split part has fewer than extra * tile_q pairs. Its chunks beyond each row's first fill at most `extra`
  // tiles.
  const int64_t partials = 2 * ceil_div(int64_t{extra} * 128, int64_t{group});
  const int64_t heads = limits.num_q_heads;
  scratch->fa2_partials.out = pieces.take<std::byte>(partials * heads * limits.kv.head_dim_v * 2);
  scratch->fa2_partials.lse = pieces.take<float>(partials * heads);
}

}  // namespace

const char* flashinfer_unmet_need(const FlashInferLimits& limits) {
  const KvLayerView& kv = limits.kv;
  if (kv.head_dim_k != kv.head_dim_v || (kv.head_dim_k != 64 && kv.head_dim_k != 128)) {
    return "head sizes other than 64 and 128";
  }
  if (limits.fa2) {
    return "";
  }
  if (group_of(limits) > 8) {
    return "more than 8 query heads per KV head";
  }
  if (kv.block_size % 16 != 0) {
    return "blocks that are no multiple of 16 tokens";
  }
  if (extend_tiles(limits) > cuda::kMaxExtendTiles) {
    return "so many tokens and rows in one step";
  }
  return "";
}

size_t flashinfer_scratch_bytes(const FlashInferLimits& limits) {
  cuda::FlashInferScratch unused;
  return cuda::flashinfer_scratch_layout(limits, nullptr, &unused);
}

namespace cuda {

XqaSplits xqa_splits(int32_t num_rows, const FlashInferLimits& limits) {
  // Measured on an H200 (bench/kernels/attention_flashinfer_cuda_bench.cu). A CTA without work costs a
  // nanosecond. So few rows may have many splits, and many rows few. Many rows have splits at all because one
  // of them may be much longer than the others.
  const int32_t chunks = num_rows * limits.kv.num_kv_heads;
  XqaSplits splits;
  splits.most = chunks <= 2048 ? std::clamp(1024 / chunks, 4, 32) : std::max(1, 8192 / chunks);
  splits.min_tiles = std::clamp(chunks / 16, 2, 32);
  return splits;
}

int32_t fa2_extra_items(const FlashInferLimits& limits) {
  return std::max(1, 2 * limits.num_sms / limits.kv.num_kv_heads);
}

Fa2Part fa2_decode_part(const FlashInferLimits& limits, int32_t num_rows) {
  const int32_t group = group_of(limits);
  Fa2Part part;
  part.num_rows = part.num_toks = num_rows;
  part.tile_q = fa2_tile_q(group, 1);
  part.split = fa2_splits(limits, part);
  part.num_items =
      num_rows * ceil_div(group, part.tile_q) + (part.split ? fa2_extra_items(limits) : 0);
  return part;
}

Fa2Part fa2_extend_part(const FlashInferLimits& limits,
                        int32_t num_decode_rows,
                        int32_t num_rows,
                        int32_t num_toks,
                        bool batch_invariant) {
  Fa2Part part;
  part.first_row = part.first_tok = num_decode_rows;
  part.num_rows = num_rows - num_decode_rows;
  part.num_toks = num_toks - num_decode_rows;
  const int64_t pairs = int64_t{part.num_toks} * group_of(limits);
  part.tile_q = batch_invariant ? 128 : fa2_tile_q(pairs, part.num_rows);
  part.split = !batch_invariant && fa2_splits(limits, part);
  part.num_items = static_cast<int32_t>(pairs / part.tile_q) + part.num_rows +
                   (part.split ? fa2_extra_items(limits) : 0);
  return part;
}

size_t flashinfer_scratch_layout(const FlashInferLimits& limits,
                                 std::byte* base,
                                 FlashInferScratch* scratch) {
  const KvLayerView& kv = limits.kv;
  Pieces pieces(base);
  if (limits.fa2) {
    take_fa2(pieces, limits, scratch);
    return pieces.bytes();
  }
  DecodeTables& tables = scratch->tables;
  tables.page_size = kv.block_size % 64 == 0 ? 64 : 16;
  tables.page_stride = kv.token_stride * tables.page_size;
  const int32_t pages_per_block = kv.block_size / tables.page_size;
  tables.max_rows = limits.max_rows;
  tables.max_pages = limits.max_blocks * pages_per_block;
  tables.pages = pieces.take<int32_t>(limits.max_rows + limits.num_table_cells * pages_per_block);
  tables.lens = pieces.take<uint32_t>(limits.max_rows);
  tables.arrivals = pieces.take<uint32_t>(int64_t{limits.max_rows} * kv.num_kv_heads);
  ExtendWork& work = scratch->work;
  work.tile_q = extend_tile_q(kv.head_dim_k);
  work.num_ctas = limits.num_sms;
  work.max_items = extend_tiles(limits) * limits.num_q_heads;
  work.work_begin = pieces.take<int32_t>(work.num_ctas + 1);
  work.items = pieces.take<int32_t>(int64_t{ExtendWork::kArrays} * work.max_items);
  scratch->partials = pieces.take<std::byte>(partial_bytes(limits));
  return pieces.bytes();
}

}  // namespace cuda
}  // namespace warprow
