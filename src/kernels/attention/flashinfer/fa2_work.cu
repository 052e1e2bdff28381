// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/attention/flashinfer/params.h"
#include "kernels/cuda/reduce.cuh"

// Formula: the (row, query tile, chunk of keys) items of a part, row by row, the last tiles of a row first,
//   because they see the most keys. If the part is split, the chunk size c is the smallest multiple of 128
//   with sum(tiles * keys) <= extra_items * c: then there are at most extra_items items more than tiles.
// Shapes: Fa2Part, Fa2Work.
// Mapping: one CTA; threads over rows for the sums, then warps over rows and lanes over items.
// Bytes moved: 13 per item; once per step, KV group and part.
// Numerics: integers.
// Preconditions: a row's place in the block table, in tokens, fits 32 bits.
namespace warprow::cuda {
namespace {

constexpr int32_t kThreads = 1024;
constexpr int32_t kWarps = kThreads / 32;
constexpr int64_t kChunkMultiple = 128;  // at least the keys of one of the kernel's tiles

struct Row {
  int32_t query_len, seq_len;
  int32_t tiles;
  int32_t keys;  // that one tile can see, as the kernel counts them
};

__device__ Row row_of(const AttentionPlanParams& p, const Fa2Part& part, int32_t r) {
  const int32_t b = part.first_row + r;
  Row row = {p.query_start_loc[b + 1] - p.query_start_loc[b], p.seq_lens[b], 0, 0};
  if (p.idx_mapping[b] < 0 || row.query_len <= 0 || row.seq_len <= 0) {
    return {0, 0, 0, 0};
  }
  row.tiles = ceil_div(row.query_len * (p.num_heads / p.num_kv_heads), part.tile_q);
  row.keys = p.window > 0 ? min(row.seq_len, p.window - 1 + part.tile_q) : row.seq_len;
  return row;
}

// Sums one value a thread over the CTA and returns the sum to every thread; `before` is the sum of the
// preceding threads.
template <typename T>
__device__ T block_sum(T value, T* before) {
  __shared__ T warp_sums[kWarps];
  const int32_t lane = threadIdx.x % 32;
  const int32_t warp = threadIdx.x / 32;
  const T upto = sum_up_to_lane(value, lane);
  if (lane == 31) {
    warp_sums[warp] = upto;
  }
  __syncthreads();
  T sum = 0;
  T begin = 0;
  for (int32_t w = 0; w < kWarps; ++w) {
    begin += w < warp ? warp_sums[w] : T{0};
    sum += warp_sums[w];
  }
  __syncthreads();
  *before = begin + upto - value;
  return sum;
}

__device__ int32_t pick_chunk_size(const AttentionPlanParams& p, const Fa2Part& part) {
  uint64_t keys = 0;
  for (int32_t r = threadIdx.x; r < part.num_rows; r += kThreads) {
    const Row row = row_of(p, part, r);
    keys += static_cast<uint64_t>(row.tiles) * row.keys;
  }
  uint64_t unused = 0;
  const uint64_t all = block_sum(keys, &unused);
  const int64_t least = ceil_div(static_cast<int64_t>(all), int64_t{p.extra_items});
  return static_cast<int32_t>(round_up(max(least, kChunkMultiple), kChunkMultiple));
}

// The kernel computes a row's length as (table_begin[r + 1] - table_begin[r] - 1) * block_size +
// last_page_len[r] in 32 bits, and takes a row for empty if the two begins are equal. The tables are read in
// place, in any order, so last_page_len makes up for the difference. Padding begins at the end of the table
// pool, where no row begins.
__device__ void place_tables(const AttentionPlanParams& p,
                             const Fa2Part& part,
                             const Fa2Work& work) {
  const auto begin_of = [&](int32_t r) {
    const int32_t row = r < part.num_rows ? p.idx_mapping[part.first_row + r] : -1;
    return static_cast<uint32_t>(row >= 0 ? p.block_table.begin_of(row) : p.block_table.num_cells);
  };
  for (int32_t r = threadIdx.x; r <= part.num_rows; r += kThreads) {
    const uint32_t begin = begin_of(r);
    work.table_begin[r] = static_cast<int32_t>(begin);
    if (r < part.num_rows) {
      const auto len = static_cast<uint32_t>(p.seq_lens[part.first_row + r]);
      work.last_page_len[r] =
          static_cast<int32_t>(len - (begin_of(r + 1) - begin - 1U) * p.block_size);
    }
  }
}

// Writes where each row's items and partial outputs begin; returns the number of items.
__device__ int32_t place_rows(const AttentionPlanParams& p,
                              const Fa2Part& part,
                              const Fa2Work& work,
                              int32_t chunk_size) {
  uint64_t done = 0;  // items in the high 32 bits, partial outputs in the low
  for (int32_t first = 0; first < part.num_rows; first += kThreads) {
    const int32_t r = first + static_cast<int32_t>(threadIdx.x);
    uint64_t own = 0;
    if (r < part.num_rows) {
      const Row row = row_of(p, part, r);
      const int32_t chunks = part.split ? ceil_div(row.keys, chunk_size) : 1;
      own = static_cast<uint64_t>(row.tiles * chunks) << 32U |
            static_cast<uint32_t>(row.query_len * chunks);
    }
    uint64_t before = 0;
    const uint64_t sum = block_sum(own, &before);
    if (r < part.num_rows) {
      work.item_begin[r] = static_cast<int32_t>((done + before) >> 32U);
      work.partial_begin[r] = static_cast<int32_t>((done + before) & 0xffffffffU);
    }
    done += sum;
  }
  const auto items = static_cast<int32_t>(done >> 32U);
  if (threadIdx.x == 0) {
    work.item_begin[part.num_rows] = items;
    work.partial_begin[part.num_rows] = static_cast<int32_t>(done & 0xffffffffU);
  }
  __syncthreads();
  return items;
}

__global__ void __launch_bounds__(kThreads) fa2_work_kernel(AttentionPlanParams p,
                                                            Fa2Part part,
                                                            Fa2Work work) {
  pdl_wait();
  const int32_t chunk_size = part.split ? pick_chunk_size(p, part) : 1;
  place_tables(p, part, work);
  const int32_t items = place_rows(p, part, work, chunk_size);
  const int32_t first_tok = p.query_start_loc[part.first_row];
  const int32_t num_toks = p.query_start_loc[part.first_row + part.num_rows] - first_tok;
  for (int32_t r = threadIdx.x / 32; r < part.num_rows; r += kWarps) {
    const Row row = row_of(p, part, r);
    const int32_t begin = work.item_begin[r];
    const int32_t count = work.item_begin[r + 1] - begin;
    const int32_t chunks = count == 0 ? 1 : count / row.tiles;
    for (int32_t i = threadIdx.x % 32; i < count && begin + i < part.num_items; i += 32) {
      work.row[begin + i] = r;
      work.tile[begin + i] = row.tiles - 1 - i / chunks;
      work.chunk[begin + i] = i % chunks;
    }
    if (part.split) {
      const int32_t tok = p.query_start_loc[part.first_row + r] - first_tok;
      for (int32_t i = threadIdx.x % 32; i < row.query_len; i += 32) {
        work.merge_begin[tok + i] = work.partial_begin[r] + i * chunks;
      }
    }
  }
  for (int32_t i = threadIdx.x; i < part.num_items; i += kThreads) {
    work.valid[i] = i < items;
  }
  if (threadIdx.x == 0) {
    work.chunk_size[0] = chunk_size;
    work.num_toks[0] = static_cast<uint32_t>(num_toks);
    if (part.split) {
      work.merge_begin[num_toks] = work.partial_begin[part.num_rows];
    }
  }
}

}  // namespace

void plan_fa2_work(Stream& stream,
                   const AttentionPlanParams& params,
                   const Fa2Part& part,
                   const Fa2Work& work) {
  launch(stream,
         "fa2_work",
         {.grid = dim3(1), .block = dim3(kThreads)},
         fa2_work_kernel,
         params,
         part,
         work);
}

}  // namespace warprow::cuda
