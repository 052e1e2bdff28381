// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/attention/flashinfer/params.h"

// Formula: the query tiles of all extend rows, sorted by the keys that they see, most first, and repeated for
//   every query head. They are assigned to the CTAs in rounds of alternating direction.
// Shapes: ExtendWork; an item is a (tile, head).
// Mapping: one CTA; a bitonic sort in shared memory, then threads over the items in output order.
// Bytes moved: 28 per item; 5 to 20 us, once per step and KV group that has extend rows.
// Numerics: integers. The order of items does not change the result of an item.
// Preconditions: at most kMaxExtendTiles tiles, max_items items, 65536 rows and tiles a row.
// Origin: "longest processing time first", assigned in snake-draft order. Assigning each item to the CTA with
//   the least work takes 150 ns an item. Neither that nor KV head by KV head made the forward faster.
namespace warprow::cuda {
namespace {

constexpr int kThreads = 1024;

// A tile as a sort key: its cost, then row and tile, so that the order is deterministic.
__device__ uint64_t tile_key(uint32_t cost, uint32_t row, uint32_t tile) {
  return (uint64_t{cost} << 32U) | (row << 16U) | tile;
}

// Sorts in descending order.
__device__ void sort_keys(uint64_t* keys, int32_t n) {
  for (int32_t size = 2; size <= n; size *= 2) {
    for (int32_t distance = size / 2; distance > 0; distance /= 2) {
      __syncthreads();
      for (int32_t i = threadIdx.x; i < n / 2; i += kThreads) {
        const int32_t a = 2 * i - (i & (distance - 1));
        const int32_t b = a + distance;
        const bool descending = (a & size) == 0;
        const uint64_t x = keys[a];
        const uint64_t y = keys[b];
        if ((x < y) == descending) {
          keys[a] = y;
          keys[b] = x;
        }
      }
    }
  }
  __syncthreads();
}

__device__ bool is_extend(const AttentionPlanParams& p, int32_t b) {
  return p.idx_mapping[b] >= 0 && p.query_start_loc[b + 1] > p.query_start_loc[b] &&
         p.seq_lens[b] > 0;
}

// Lists every tile of every extend row. The order of the list varies; the sort makes it deterministic.
__device__ int32_t list_tiles(const AttentionPlanParams& p, int32_t tile_q, uint64_t* keys) {
  __shared__ int32_t count;
  if (threadIdx.x == 0) {
    count = 0;
  }
  __syncthreads();
  for (int32_t b = p.num_decode_rows + static_cast<int32_t>(threadIdx.x); b < p.num_rows;
       b += kThreads) {
    if (!is_extend(p, b)) {
      continue;
    }
    const int32_t query_len = p.query_start_loc[b + 1] - p.query_start_loc[b];
    const int32_t seq_len = p.seq_lens[b];
    const int32_t tiles = (query_len + tile_q - 1) / tile_q;
    const int32_t at = atomicAdd(&count, tiles);
    for (int32_t t = 0; t < tiles; ++t) {
      const int32_t seen = seq_len - query_len + min((t + 1) * tile_q, query_len);
      if (at + t < kMaxExtendTiles) {
        // The fixed cost of a tile is worth about 2 * tile_q keys.
        keys[at + t] = tile_key(static_cast<uint32_t>(seen + 2 * tile_q), b, t);
      }
    }
  }
  __syncthreads();
  return min(count, kMaxExtendTiles);
}

// Round r assigns items [r * ctas, (r + 1) * ctas) to the CTAs, forwards if r is even. The last round has
// `rest` items.
struct Deal {
  int32_t ctas, rounds, rest;

  __device__ Deal(int32_t items, int32_t num_ctas)
      : ctas(num_ctas), rounds(items / num_ctas), rest(items % num_ctas) {}
  [[nodiscard]] __device__ bool rest_forwards() const { return rounds % 2 == 0; }
  // First place of CTA c's items in the lists.
  [[nodiscard]] __device__ int32_t begin_of(int32_t c) const {
    return c * rounds + (rest_forwards() ? min(c, rest) : max(0, c - (ctas - rest)));
  }
  // The item at a place of the lists.
  [[nodiscard]] __device__ int32_t item_at(int32_t at) const {
    const int32_t first = rest_forwards() ? rest : ctas - rest;  // CTAs with first_len items each
    const int32_t first_len = rest_forwards() ? rounds + 1 : rounds;
    const int32_t other_len = rest_forwards() ? rounds : rounds + 1;
    const int32_t c =
        at < first * first_len ? at / first_len : first + (at - first * first_len) / other_len;
    const int32_t round = at - begin_of(c);
    return round * ctas + (round % 2 == 0 ? c : ctas - 1 - c);
  }
};

__global__ void __launch_bounds__(kThreads) extend_work_kernel(AttentionPlanParams p,
                                                               ExtendWork work) {
  __shared__ uint64_t keys[kMaxExtendTiles];
  pdl_wait();
  const int32_t tiles = list_tiles(p, work.tile_q, keys);
  int32_t padded = 1;
  while (padded < tiles) {
    padded *= 2;
  }
  for (int32_t i = tiles + static_cast<int32_t>(threadIdx.x); i < padded; i += kThreads) {
    keys[i] = 0;
  }
  sort_keys(keys, padded);

  const int32_t items = min(tiles * p.num_heads, work.max_items);
  const Deal deal(items, work.num_ctas);
  for (int32_t c = threadIdx.x; c <= work.num_ctas; c += kThreads) {
    work.work_begin[c] = deal.begin_of(c);
  }
  for (int32_t at = threadIdx.x; at < items; at += kThreads) {
    const int32_t item = deal.item_at(at);
    const uint64_t key = keys[item / p.num_heads];
    const auto b = static_cast<int32_t>(key >> 16U & 0xffffU);
    const int32_t query_start = p.query_start_loc[b];
    work.item(ExtendWork::kTile)[at] = static_cast<int32_t>(key & 0xffffU);
    work.item(ExtendWork::kHead)[at] = item % p.num_heads;
    work.item(ExtendWork::kQueryStart)[at] = query_start;
    work.item(ExtendWork::kTableStart)[at] = p.block_table.begin_of(p.idx_mapping[b]);
    work.item(ExtendWork::kQueryLen)[at] = p.query_start_loc[b + 1] - query_start;
    work.item(ExtendWork::kKvLen)[at] = p.seq_lens[b];
    work.item(ExtendWork::kBatchIdx)[at] = b;
  }
}

}  // namespace

void plan_extend_work(Stream& stream, const AttentionPlanParams& params, const ExtendWork& work) {
  launch(stream,
         "extend_work",
         {.grid = dim3(1), .block = dim3(kThreads)},
         extend_work_kernel,
         params,
         work);
}

}  // namespace warprow::cuda
