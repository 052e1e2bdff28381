// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/attention/native/params.h"
#include "kernels/cuda/pipeline.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tma.cuh"

#include <cuda_bf16.h>

// The producer warpgroup of Hopper's prompt kernel (hopper_prefill.cuh): it takes items, and loads queries, keys and values.
namespace warprow::cuda {
namespace {

constexpr int kConsumers = 256;
constexpr int kHopperThreads = kConsumers + 128;
constexpr int kLoaders = 96;     // threads that load queries
constexpr int kQueryStages = 2;  // items

template <int kDim, bool kParts>
struct HopperSizes {
  static constexpr int kKeys = kParts ? kPartTile : 128;  // of a tile
  static constexpr int kStages = 256 / kKeys;
  static constexpr int kHalves = kDim / 64;  // a swizzled operand row is 64 elements wide
  static constexpr int kQueryHalfBytes = kPromptRows * 128;
  static constexpr int kQueryBytes = kHalves * kQueryHalfBytes;
  static constexpr int kHalfBytes = kKeys * 128;
  static constexpr int kTileBytes = kHalves * kHalfBytes;  // keys or values
  static constexpr int kKeysAt = kQueryStages * kQueryBytes;
  static constexpr int kValuesAt = kKeysAt + kStages * kTileBytes;
  static constexpr int kSharedBytes = kValuesAt + kStages * kTileBytes + 1024;  // to align
};

using QueryRing = Ring<kQueryStages>;
template <int kDim, bool kParts>
using TileStages = Ring<HopperSizes<kDim, kParts>::kStages>;

// An item or, in parts, a piece of it: some of its parts of keys. The first piece stores its parts, merged, in the first of the
// item's slots in scratch, the others store each part in one of its own. The last CTA to do so merges them in order.
struct HopperItem {
  int32_t row, kv_head;  // row < 0: there is no item
  int32_t first_row, num_rows;
  int32_t first_token, first_position, seq_len;
  int32_t first_tile, end_tile;  // of keys
  int32_t number;                // of the item
  int32_t pieces, piece;
  int32_t slots, first_slot;  // of the item, and the first of this piece; only with several pieces

  // piece_number: below num_pieces. Returns whether there is such a piece.
  template <bool kSplit>
  __device__ bool find(const NativeParams& p, int32_t piece_number, int32_t tile_keys) {
    const int32_t* before = p.scratch.prefill_tiles;
    const int32_t n = p.num_rows - p.first_prefill_row;
    const int32_t most = kSplit ? p.prompt_split.pieces : 1;
    number = piece_number / most;
    const int32_t query_tile = before[n] - 1 - number / p.num_kv_heads;
    kv_head = number % p.num_kv_heads;
    int32_t low = 0;  // the last row with before[row] <= query_tile
    int32_t high = n;
    while (high - low > 1) {
      const int32_t middle = (low + high) / 2;
      (before[middle] <= query_tile ? low : high) = middle;
    }
    row = p.first_prefill_row + low;
    first_row = (query_tile - before[low]) * kPromptRows;
    first_token = p.query_start_loc[row];
    const int32_t queries = p.query_start_loc[row + 1] - first_token;
    num_rows = queries * p.group;
    seq_len = p.seq_lens[row];
    first_position = seq_len - queries;
    const int32_t last_query = (min(first_row + kPromptRows, num_rows) - 1) / p.group;
    const int32_t end_key = p.end_key(first_position + last_query, seq_len);
    const int32_t first_key =
        p.window > 0 ? max(0, first_position + first_row / p.group - p.window + 1) : 0;
    first_tile = first_key / tile_keys;
    end_tile = (end_key + tile_keys - 1) / tile_keys;
    piece = piece_number % most;
    pieces = 1;
    slots = 0;
    first_slot = 0;
    if constexpr (kSplit) {
      const int32_t begin = first_tile * tile_keys;
      const int32_t parts = num_parts(begin, end_key);
      const int32_t of_piece = p.prompt_split.piece_tiles;
      pieces = max(1, min(min(most, parts), (end_tile - first_tile + of_piece - 1) / of_piece));
      const int32_t of_first = (parts + pieces - 1) / pieces;
      slots = 1 + parts - of_first;
      pieces = slots <= p.prompt_split.slots ? pieces : 1;
      if (pieces > 1 && piece < pieces) {
        const PartRun run = part_run(begin, end_key, pieces, piece);
        first_slot = piece == 0 ? 0 : 1 + run.part - of_first;
        first_tile = run.begin / tile_keys;
        end_tile = (run.end + tile_keys - 1) / tile_keys;
      }
    }
    return piece < pieces;
  }

  [[nodiscard]] static __device__ int32_t num_pieces(const NativeParams& p) {
    return p.scratch.prefill_tiles[p.num_rows - p.first_prefill_row] * p.num_kv_heads *
           p.prompt_split.pieces;
  }
};

// Shared memory of a CTA besides the tiles.
template <int kStages>
struct HopperControl {
  uint64_t queries[2 * kQueryStages];
  uint64_t keys[2 * kStages];
  uint64_t values[2 * kStages];
  HopperItem items[kQueryStages];
  bool is_last[2];  // of the item's pieces, by consumer warpgroup
  int32_t next;     // the number of the next item to load
};

template <int kDim, bool kParts>
struct HopperBlock {
  QueryRing queries;
  TileStages<kDim, kParts> keys, values;
  HopperControl<HopperSizes<kDim, kParts>::kStages>* control;

  [[nodiscard]] __device__ const HopperItem& item(uint32_t i) const {
    return control->items[i % kQueryStages];
  }
};

// Starts the load of an item's queries into the swizzled layout that wgmma reads.
template <int kDim>
__device__ void copy_queries(const NativeParams& p,
                             const HopperItem& item,
                             int thread,
                             uint32_t to) {
  using Sizes = HopperSizes<kDim, false>;
  constexpr int kChunks = kDim / 8;
  for (int at = thread; at < kPromptRows * kChunks; at += kLoaders) {
    const int r = at / kChunks;
    const int chunk = at % kChunks;
    const int32_t packed = item.first_row + r;
    const bool valid = packed < item.num_rows;
    const int32_t query = valid ? packed / p.group : 0;
    const int32_t head = item.kv_head * p.group + (valid ? packed - query * p.group : 0);
    const auto* from = static_cast<const __nv_bfloat16*>(p.q) +
                       (item.first_token + query) * p.q_stride + head * kDim + chunk * 8;
    copy16_async(
        to + chunk / 8 * Sizes::kQueryHalfBytes + r * 128 + (((chunk ^ r) & 7) * 16), from, valid);
  }
  copy_commit();
}

// Three producer warps: take items and load their queries, one item ahead of the consumers.
template <int kDim, bool kParts, bool kSplit>
__device__ void load_queries(const NativeParams& p, const HopperBlock<kDim, kParts>& block) {
  const int thread = static_cast<int>(threadIdx.x) - kConsumers - 32;
  const int32_t num_pieces = HopperItem::num_pieces(p);
  auto number = static_cast<int32_t>(blockIdx.x);
  uint32_t i = 0;
  while (number < num_pieces) {
    HopperItem item;
    const bool any = item.find<kSplit>(p, number, HopperSizes<kDim, kParts>::kKeys);
    if (any) {
      block.queries.wait_empty(i);
      copy_queries<kDim>(p, item, thread, block.queries.stage(i));
    }
    if (thread == 0) {
      if (any) {
        block.control->items[i % kQueryStages] = item;
      }
      // A launch makes num_pieces takes, so the counter wraps to 0 at the last one.
      block.control->next = static_cast<int32_t>(
          atomicInc(&p.scratch.counts->prefill_taken, num_pieces - 1) + gridDim.x);
    }
    if (any) {
      copy_wait<0>();
      fence_async_proxy();
      barrier_arrive(block.queries.full(i));
      ++i;
    }
    named_sync(1, kLoaders);
    number = block.control->next;
    named_sync(1, kLoaders);
  }
  block.queries.wait_empty(i);
  if (thread == 0) {
    block.control->items[i % kQueryStages].row = -1;
  }
  barrier_arrive(block.queries.full(i));
}

// One producer warp: loads the key and value tiles of all items. A TMA box is `box` tokens of a page, 64
// elements wide.
template <int kDim, bool kParts>
__device__ void load_tiles(const NativeParams& p,
                           const CUtensorMap& k_map,
                           const CUtensorMap& v_map,
                           const HopperBlock<kDim, kParts>& block,
                           int32_t box) {
  using Sizes = HopperSizes<kDim, kParts>;
  const int lane = threadIdx.x % 32;
  const int half = lane % Sizes::kHalves;
  const int within = lane / Sizes::kHalves * box;  // token in the tile
  uint32_t n = 0;
  for (uint32_t i = 0;; ++i) {
    block.queries.wait_full(i);
    const HopperItem item = block.item(i);
    __syncwarp();
    if (lane == 0) {
      barrier_arrive(block.queries.empty(i));
    }
    if (item.row < 0) {
      return;
    }
    const int32_t* table = p.block_table.of_row(p.idx_mapping[item.row]);
    for (int32_t tile = item.first_tile; tile < item.end_tile; ++tile, ++n) {
      const int32_t token = tile * Sizes::kKeys + within;
      const bool has = within < Sizes::kKeys && token < item.seq_len;
      const int32_t page = has ? table[token / p.block_size] : 0;
      const int32_t offset = token % p.block_size;
      const uint32_t bytes = __popc(__ballot_sync(0xffffffffU, has)) * box * 128;
      const uint32_t to = half * Sizes::kHalfBytes + within * 128;
      const auto bring = [&](const auto& ring, const CUtensorMap& map) {
        ring.wait_empty(n);
        if (lane == 0) {
          barrier_arrive_expecting(ring.full(n), bytes);
        }
        __syncwarp();
        if (has) {
          tma_load_4d(ring.stage(n) + to, map, ring.full(n), half * 64, offset, item.kv_head, page);
        }
      };
      bring(block.keys, k_map);
      bring(block.values, v_map);
    }
  }
}

}  // namespace
}  // namespace warprow::cuda
