// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/attention/native_launch.h"

// Formula: cuts a step's decode rows into pieces of work for the decode grid, and numbers the query
//   tiles of the other rows.
// Shapes: NativeScratch; rows [0, num_decode_rows) have one query token, the others any number.
// Mapping: block 0 decode, block 1 prefill; threads over rows.
// Bytes moved: a few per row and piece; a few microseconds, once a step and KV group.
// Numerics: integers. Where rows are cut, and so in which order a decode row's sum is made, depends
//   on the lengths of the whole batch.
// Preconditions: at most kMaxScheduledRows rows.
// Origin: guided self-scheduling (Polychronopoulos and Kuck, 1987): pieces shrink towards the end.
namespace warprow::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kRowsPerThread = kMaxScheduledRows / kThreads;

// The sum of `value` over the threads before this one.
__device__ int32_t sum_before(int32_t value) {
  __shared__ int32_t warp_sums[32];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  int32_t sum = value;
  for (int d = 1; d < 32; d *= 2) {
    const int32_t other = __shfl_up_sync(0xffffffffU, sum, d);
    sum += lane >= d ? other : 0;
  }
  if (lane == 31) {
    warp_sums[warp] = sum;
  }
  __syncthreads();
  int32_t before = 0;
  for (int w = 0; w < warp; ++w) {
    before += warp_sums[w];
  }
  return before + sum - value;
}

// before[i] = counts of items before i, before[n] = all; item i counts count_of(i).
template <typename CountOf>
__device__ void prefix_sums(int32_t* before, int32_t n, CountOf count_of) {
  int32_t counts[kRowsPerThread];
  int32_t mine = 0;
  const int32_t per_thread = (n + kThreads - 1) / kThreads;
  const int32_t first = static_cast<int32_t>(threadIdx.x) * per_thread;
#pragma unroll
  for (int32_t i = 0; i < kRowsPerThread; ++i) {
    counts[i] = i < per_thread && first + i < n ? count_of(first + i) : 0;
    mine += counts[i];
  }
  int32_t at = sum_before(mine);
#pragma unroll
  for (int32_t i = 0; i < kRowsPerThread; ++i) {
    if (i < per_thread && first + i < n) {
      before[first + i] = at;
      at += counts[i];
      if (first + i == n - 1) {
        before[n] = at;
      }
    }
  }
  if (n == 0 && threadIdx.x == 0) {
    before[0] = 0;
  }
  __syncthreads();
}

// How finely rows are cut. A block's even share of the step's tiles is `share`; a row that begins
// when the fraction x of the tiles lies before it is cut into parts of about share * (1 - x) / 2,
// so that parts become smaller towards the end and the blocks end together, though some are much
// faster. No part is smaller than kSmallest tiles unless its row is, or half of that where the
// device would stay empty.
struct Cutting {
  static constexpr int32_t kSmallest = 16;
  static constexpr int32_t kMostParts = 64;
  int32_t all;  // tiles of one head over all rows
  int32_t num_heads;
  int32_t num_blocks;

  [[nodiscard]] __device__ int32_t parts(int32_t before, int32_t tiles) const {
    const float middle = static_cast<float>(before) + 0.5F * static_cast<float>(tiles);
    const float left = static_cast<float>(all) - middle;
    const float size = left * static_cast<float>(num_heads) / static_cast<float>(2 * num_blocks);
    const bool few = all * num_heads <= kSmallest / 2 * num_blocks && tiles > kSmallest;
    const int32_t whole = max(few ? kSmallest / 2 : kSmallest, static_cast<int32_t>(size));
    return min(kMostParts, (tiles + whole - 1) / whole);
  }
};

__device__ void write_items(const ScheduleParams& p,
                            int32_t row,
                            DecodeItem* items,
                            int32_t tiles,
                            int32_t parts,
                            int32_t first_part) {
  DecodeItem item;
  item.row = row;
  item.table_row = p.idx_mapping[row];
  item.seq_len = p.seq_lens[row];
  item.num_parts = parts;
  item.first_part = first_part;
  const int32_t first = (item.seq_len + kDecodeTile - 1) / kDecodeTile - tiles;
  const int32_t each = tiles / parts;
  const int32_t longer = tiles - each * parts;  // parts with one tile more come first
  for (int32_t i = 0; i < parts; ++i) {
    item.part = i;
    item.tile = first + i * each + min(i, longer);
    item.num_tiles = each + (i < longer ? 1 : 0);
    items[i] = item;
  }
}

__device__ void schedule_decode(const ScheduleParams& p) {
  __shared__ int32_t tiles_before[kMaxScheduledRows + 1];
  __shared__ int32_t parts_before[kMaxScheduledRows + 1];  // of rows that are to be cut
  __shared__ int32_t items_before[kMaxScheduledRows + 1];
  const int32_t n = p.num_decode_rows;
  prefix_sums(tiles_before, n, [&](int32_t r) {
    return p.idx_mapping[r] < 0 ? 0 : decode_tiles(p.seq_lens[r], p.window);
  });
  const Cutting cutting{tiles_before[n], p.num_kv_heads, p.num_blocks};
  const auto tiles_of = [&](int32_t r) { return tiles_before[r + 1] - tiles_before[r]; };
  prefix_sums(parts_before, n, [&](int32_t r) {
    const int32_t parts = cutting.parts(tiles_before[r], tiles_of(r));
    return parts > 1 ? parts : 0;
  });
  // Rows for whose parts there is no room stay whole.
  const auto parts_of = [&](int32_t r) {
    const int32_t parts = parts_before[r + 1] - parts_before[r];
    return parts > 0 && parts_before[r + 1] <= kMaxParts / p.num_kv_heads ? parts : 1;
  };
  prefix_sums(items_before, n, [&](int32_t r) { return tiles_of(r) > 0 ? parts_of(r) : 0; });
  for (int32_t r = threadIdx.x; r < n; r += kThreads) {
    if (tiles_of(r) > 0) {
      DecodeItem* items = p.scratch.items + items_before[r];
      write_items(p, r, items, tiles_of(r), parts_of(r), parts_before[r]);
    }
  }
  for (int32_t i = threadIdx.x; i < n * p.num_kv_heads; i += kThreads) {
    p.scratch.arrivals[i] = 0;
  }
  if (threadIdx.x == 0) {
    p.scratch.counts->num_pieces = items_before[n] * p.num_kv_heads;
    p.scratch.counts->taken = 0;
  }
}

__device__ void schedule_prefill(const ScheduleParams& p) {
  const int32_t first = p.num_decode_rows;
  if (threadIdx.x == 0) {
    p.scratch.counts->prefill_taken = 0;
  }
  prefix_sums(p.scratch.prefill_tiles, p.num_rows - first, [&](int32_t i) {
    const int32_t r = first + i;
    const int32_t queries = p.query_start_loc[r + 1] - p.query_start_loc[r];
    const bool any = p.idx_mapping[r] >= 0 && p.seq_lens[r] > 0 && queries > 0;
    return any ? (queries * p.group + p.prefill_rows_per_tile - 1) / p.prefill_rows_per_tile : 0;
  });
}

__global__ void __launch_bounds__(kThreads) schedule_kernel(const ScheduleParams p) {
  pdl_wait();
  pdl_release();
  if (blockIdx.x == 0) {
    schedule_decode(p);
  } else {
    schedule_prefill(p);
  }
}

}  // namespace

void native_schedule(Stream& stream, const ScheduleParams& params) {
  launch(stream, "attention_schedule", {dim3(2), dim3(kThreads)}, schedule_kernel, params);
}

}  // namespace warprow::cuda
