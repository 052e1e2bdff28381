// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/attention/native_launch.h"

// Formula: deals a step's decode work out to the blocks of the decode grid in equal numbers of key
//   tiles, and numbers the query tiles of the other rows.
// Shapes: NativeScratch; rows [0, num_decode_rows) have one query token, the others any number.
// Mapping: block 0 decode, block 1 prefill; threads over rows, then over grid blocks.
// Bytes moved: a few per row and grid block; a few microseconds, once a step and KV group.
// Numerics: integers. Where pairs are cut, and so in which order a decode row's sum is made, depends
//   on the lengths of the whole batch.
// Preconditions: at most kMaxScheduledRows rows and kMaxDecodeBlocks blocks.
// Origin: "stream-K" work splitting; our own cuts, moved to the nearest pair where that costs little.
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

// The number of ascending values[0..n) that are at most x.
template <typename T>
__device__ int32_t count_at_most(const T* values, int32_t n, T x) {
  int32_t low = 0;
  int32_t high = n;
  while (low < high) {
    const int32_t middle = (low + high) / 2;
    if (values[middle] <= x) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Where a position in the step's sequence of tiles lies.
struct Place {
  int32_t row, head, tile;
  int32_t pair_tiles;
};

struct DecodeRows {
  const int32_t* before;  // [n + 1] tiles of one head before each row
  int32_t n;
  int32_t num_heads;

  [[nodiscard]] __device__ int64_t num_tiles() const { return int64_t{before[n]} * num_heads; }
  [[nodiscard]] __device__ Place find(int64_t position) const {
    const auto per_head = static_cast<int32_t>(position / num_heads);
    Place at;
    at.row = count_at_most(before, n + 1, per_head) - 1;
    const auto within = static_cast<int32_t>(position - int64_t{before[at.row]} * num_heads);
    at.pair_tiles = before[at.row + 1] - before[at.row];
    at.head = within / at.pair_tiles;
    at.tile = within - at.head * at.pair_tiles;
    return at;
  }
};

// Cuts [0, num_tiles) for the grid's blocks: equal shares, but at the edges of pairs where no share
// grows much by it, since a pair that is cut costs its blocks a meeting.
__device__ void cut_shares(const DecodeRows& rows, int32_t num_blocks, int64_t* cuts) {
  __shared__ int32_t largest;
  const int64_t all = rows.num_tiles();
  const auto used =
      static_cast<int32_t>(min(int64_t{num_blocks}, (all + kMinShareTiles - 1) / kMinShareTiles));
  const auto block = static_cast<int32_t>(threadIdx.x);
  const bool inner = block > 0 && block < used;
  const auto share = static_cast<int32_t>(used > 0 ? all / used : 0);
  int64_t equal = block == 0 ? 0 : all;
  int64_t snapped = equal;
  int32_t distance = 0;
  if (inner) {
    equal = all * block / used;
    const Place at = rows.find(equal);
    const bool down = 2 * at.tile < at.pair_tiles;
    distance = down ? at.tile : at.pair_tiles - at.tile;
    snapped = equal + (down ? -distance : distance);
  }
  if (block == 0) {
    largest = 0;
    cuts[num_blocks] = all;
  }
  if (block < num_blocks) {
    cuts[block] = snapped;
  }
  __syncthreads();
  if (block < num_blocks) {
    atomicMax(&largest, static_cast<int32_t>(cuts[block + 1] - cuts[block]));
  }
  __syncthreads();
  if (largest > share + share / 16 + 4 && inner && distance > share / 32 + 2) {
    cuts[block] = equal;
  }
  __syncthreads();
}

__device__ DecodeShare make_share(const DecodeRows& rows,
                                  const int64_t* cuts,
                                  int32_t num_blocks,
                                  int32_t block) {
  DecodeShare share = {};
  const int64_t begin = cuts[block];
  const int64_t end = cuts[block + 1];
  share.num_tiles = static_cast<int32_t>(end - begin);
  if (begin == end) {
    return share;
  }
  const auto last_block = [&](int64_t pair_end) {
    return count_at_most(cuts, num_blocks + 1, pair_end - 1) - 1;
  };
  const Place first = rows.find(begin);
  share.row = first.row;
  share.head = first.head;
  share.tile = first.tile;
  const int64_t first_pair = begin - first.tile;
  share.first_pair_first_block = count_at_most(cuts, num_blocks + 1, first_pair) - 1;
  share.first_pair_last_block = last_block(first_pair + first.pair_tiles);
  const Place last = rows.find(end - 1);
  share.last_pair_last_block = last_block(end - 1 - last.tile + last.pair_tiles);
  return share;
}

__device__ void schedule_decode(const ScheduleParams& p) {
  __shared__ int32_t before[kMaxScheduledRows + 1];
  __shared__ int64_t cuts[kMaxDecodeBlocks + 1];
  prefix_sums(before, p.num_decode_rows, [&](int32_t r) {
    return p.idx_mapping[r] < 0 ? 0 : decode_tiles(p.seq_lens[r], p.window);
  });
  const DecodeRows rows{before, p.num_decode_rows, p.num_kv_heads};
  cut_shares(rows, p.num_blocks, cuts);
  for (int32_t i = threadIdx.x; i < p.num_decode_rows * p.num_kv_heads; i += kThreads) {
    p.scratch.arrivals[i] = 0;
  }
  if (static_cast<int32_t>(threadIdx.x) < p.num_blocks) {
    const auto block = static_cast<int32_t>(threadIdx.x);
    p.scratch.shares[block] = make_share(rows, cuts, p.num_blocks, block);
  }
}

__device__ void schedule_prefill(const ScheduleParams& p) {
  const int32_t first = p.num_decode_rows;
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
