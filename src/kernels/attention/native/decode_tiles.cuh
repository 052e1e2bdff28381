// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/cuda/tensor_map.h"
#include "kernels/attention/native/params.h"
#include "kernels/cuda/mbarrier.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tma.cuh"

#include <cuda.h>
#include <type_traits>

// Loads the tiles of a decode CTA's pieces into shared memory (decode.cuh).
namespace warprow::cuda {
namespace {

constexpr int kDecodeThreads = 32 * kDecodeWarps;       // the compute warps
constexpr int kDecodeAllThreads = kDecodeThreads + 32;  // and the scheduler warp

template <int kDim, int kHeadTiles>
struct DecodeSizes {
  static constexpr int kChunks = kDim / 8;                   // of 16 bytes in a token's row
  static constexpr int kHalfBytes = kDecodeTile * kDim * 2;  // keys, then values
  static constexpr int kStageBytes = 2 * kHalfBytes;
  static constexpr int kBlocksPerSm = kHeadTiles == 1 ? 2 : 1;
  static constexpr int kHeads = 8 * kHeadTiles;
  static constexpr int kPitch = kDim + 4;  // floats of a head's output in the exchange, padded
  static constexpr int kExchangeFloats = kDecodeWarps * kHeads * (kPitch + 2);

  // Offset of 16 bytes of a token in the keys or values of a tile: rows of 128 bytes, with TMA's 128-byte
  // swizzle.
  [[nodiscard]] static __device__ int place(int token, int chunk) {
    return chunk / 8 * (kDecodeTile * 128) + token * 128 + ((chunk % 8) ^ (token % 8)) * 16;
  }
};

// Tensor map of a layer's keys or values: a box is a decode tile's tokens of one head, in rows of 128 bytes.
inline CUtensorMap decode_tile_map(const char* base, const NativeParams& p, int32_t head_dim) {
  constexpr uint32_t kRow = 64;
  const auto parts = static_cast<uint32_t>(head_dim) / kRow;
  return tensor_map<5>(base,
                       {kRow,
                        static_cast<uint64_t>(p.block_size),
                        parts,
                        static_cast<uint64_t>(p.num_kv_heads),
                        uint64_t{1} << 31},
                       {static_cast<uint64_t>(p.token_bytes),
                        2 * kRow,
                        static_cast<uint64_t>(p.head_bytes),
                        static_cast<uint64_t>(p.block_bytes)},
                       {kRow, static_cast<uint32_t>(kDecodeTile), parts, 1, 1},
                       CU_TENSOR_MAP_L2_PROMOTION_NONE);
}

// The tensor maps of a layer's cache.
struct TmaMaps {
  CUtensorMap k, v;
};
inline TmaMaps tma_maps(const NativeParams& params, int32_t head_dim) {
  return {decode_tile_map(params.k, params, head_dim), decode_tile_map(params.v, params, head_dim)};
}

// Tiles are loaded by all threads of a warp with cp.async (CpAsync), or by TMA (TmaMaps).
struct CpAsync {};
template <typename Copies>
constexpr bool kUsesTma = std::is_same_v<Copies, TmaMaps>;

// GPUs other than Hopper have less shared memory.
template <int kDim, int kHeadTiles, typename Copies>
struct RingSizes : DecodeSizes<kDim, kHeadTiles> {
  using Base = DecodeSizes<kDim, kHeadTiles>;
  static constexpr int kStages = (kHeadTiles == 1 ? 2 : kUsesTma<Copies> ? 5 : 3) * 128 / kDim;
  static constexpr int kRingBytes = kDecodeWarps * kStages * Base::kStageBytes;
  static constexpr int kBarriers = kDecodeWarps * kStages;
  static constexpr int kSharedBytes = kRingBytes + Base::kExchangeFloats * 4 + kBarriers * 8;
};

// The index of a tile's block in its row. Exact for up to 2^32 / (tiles of a block) tiles.
__device__ __forceinline__ int32_t block_of(const NativeParams& p, int32_t tile) {
  return p.tiles_reciprocal == 0 ? tile : static_cast<int32_t>(__umulhi(tile, p.tiles_reciprocal));
}

// An item for one KV head.
struct Piece {
  DecodeItem item;
  int32_t head;
};

// From its description, of which lane l has the l-th integer (PieceQueue::fetch).
__device__ __forceinline__ Piece piece_of_lanes(int32_t field) {
  Piece piece;
  auto* ints = reinterpret_cast<int32_t*>(&piece.item);
#pragma unroll
  for (int i = 0; i < kDecodeItemInts; ++i) {
    ints[i] = __shfl_sync(0xffffffffU, field, i);
  }
  piece.head = __shfl_sync(0xffffffffU, field, kDecodeItemInts);
  return piece;
}

// The query of a (query, head) pair. Division takes long, and most items have one query.
__device__ __forceinline__ int32_t query_of(const NativeParams& p,
                                            const DecodeItem& item,
                                            int32_t pair) {
  return item.num_toks == 1 ? 0 : pair / p.group;
}

// The pieces of a CTA, in order. The first two are fixed. The k-th becomes known while the CTA is at piece k
// - 2, so that loads can run ahead into the piece after the current one.
struct PieceQueue {
  static constexpr int kSlots = 3;
  static constexpr int kSlotInts = 12;
  static_assert(kDecodeItemInts == kSlotInts - 1);
  int32_t* slots;  // shared [kSlots, kSlotInts]: the item, the head (-1: no piece)
  int32_t num_pieces;

  // The CTA's first two pieces, k = 0 and 1. The longest pieces have the lowest numbers, so a CTA with a longer first one has
  // a shorter second one.
  [[nodiscard]] static __device__ int32_t own(uint32_t k) {
    return static_cast<int32_t>(k == 0 ? blockIdx.x : 2 * gridDim.x - 1 - blockIdx.x);
  }
  // Whether there are more pieces than those.
  [[nodiscard]] __device__ bool dealt() const {
    return num_pieces > 2 * static_cast<int32_t>(gridDim.x);
  }
  // One thread: takes the piece two after the current one. A launch makes num_pieces takes, so the counter
  // wraps to 0 at the last one.
  [[nodiscard]] __device__ int32_t take(const NativeParams& p) const {
    return static_cast<int32_t>(atomicInc(&p.scratch.counts->taken, num_pieces - 1) +
                                2 * gridDim.x);
  }
  // One warp: fetches the description of a piece for put, one integer a lane.
  [[nodiscard]] __device__ int32_t fetch(const NativeParams& p, int32_t number) const {
    if (number >= num_pieces) {
      return -1;
    }
    const int lane = threadIdx.x % 32;
    const int32_t item = number / p.num_kv_heads;
    return lane < kDecodeItemInts
               ? __ldcg(reinterpret_cast<const int32_t*>(p.scratch.items + item) + lane)
               : number - item * p.num_kv_heads;
  }
  __device__ void put(int k, int32_t fetched) const {
    if (threadIdx.x % 32 < kSlotInts) {
      slots[k % kSlots * kSlotInts + threadIdx.x % 32] = fetched;
    }
  }
  [[nodiscard]] __device__ bool has(int k) const {
    return slots[(k % kSlots + 1) * kSlotInts - 1] >= 0;
  }
  [[nodiscard]] __device__ Piece get(int k) const {
    const auto* slot = reinterpret_cast<const int4*>(slots + k % kSlots * kSlotInts);
    const int4 a = slot[0];
    const int4 b = slot[1];
    const int4 c = slot[2];
    return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w, c.x, c.y, c.z}, c.w};
  }
};

// TMA load of one box of a tile: 16 tokens of a KV head. A key is read once a step.
__device__ __forceinline__ void load_box(
    uint32_t to, const CUtensorMap& map, uint32_t barrier, int token, int head, int block) {
  tma_load_5d(to, map, barrier, token, head, block, read_once());
}

// A warp's position in its tiles, ahead of the arithmetic.
template <int kDim, typename Copies>
struct TileFeed {
  Piece piece;
  int k = -1;     // index of `piece` among the CTA's pieces
  int32_t n = 0;  // tiles of this warp in the piece whose load has started
  // Lane l holds the block of the warp's tile held_first + l of the piece. The blocks of the next two pieces
  // are prefetched into registers, and not read before those pieces begin.
  int32_t held = 0;
  int32_t held_first = 0;
  int32_t coming_even = 0;
  int32_t coming_odd = 0;

  [[nodiscard]] __device__ const int32_t* entry(const NativeParams& p,
                                                const DecodeItem& item,
                                                int32_t first) const {
    const auto mine = (first + static_cast<int32_t>(threadIdx.x % 32)) * kDecodeWarps +
                      static_cast<int32_t>(threadIdx.x / 32);
    const int32_t tile = item.tile + min(mine, item.num_tiles - 1);
    return p.block_table.cells + item.table_begin + block_of(p, tile);
  }
  // Prefetches the blocks of a piece; once for every piece of the CTA, before `find` gets there.
  __device__ void expect(const NativeParams& p, const PieceQueue& queue, int k_coming) {
    if (queue.has(k_coming)) {
      const int32_t* from = entry(p, queue.get(k_coming).item, 0);
      if (k_coming % 2 == 0) {
        coming_even = __ldcg(from);
      } else {
        coming_odd = __ldcg(from);
      }
    }
  }

  // Whether the warp has another tile in its CTA's pieces up to the `reach`-th; moves to it.
  __device__ bool find(const PieceQueue& queue, int reach) {
    const int warp = threadIdx.x / 32;
    while (k < 0 || warp + n * kDecodeWarps >= piece.item.num_tiles) {
      if (k >= reach || !queue.has(k + 1)) {
        return false;
      }
      ++k;
      piece = queue.get(k);
      held = k % 2 == 0 ? coming_even : coming_odd;
      held_first = 0;
      n = 0;
    }
    return true;
  }
  // Whether the current tile holds keys of this step.
  [[nodiscard]] __device__ bool newest() const {
    const int32_t tile =
        piece.item.tile + static_cast<int32_t>(threadIdx.x / 32) + n * kDecodeWarps;
    return (tile + 1) * kDecodeTile > piece.item.num_old_keys;
  }

  // Starts the load of the current tile.
  __device__ void copy(const NativeParams& p,
                       const Copies& copies,
                       uint32_t stage,
                       uint32_t barrier) {
    using Sizes = DecodeSizes<kDim, 1>;
    const int lane = threadIdx.x % 32;
    if (n >= held_first + 32) {
      held_first = n;
      held = __ldcg(entry(p, piece.item, n));
    }
    const int32_t tile =
        piece.item.tile + static_cast<int32_t>(threadIdx.x / 32) + n * kDecodeWarps;
    const int32_t offset = tile * kDecodeTile - block_of(p, tile) * p.block_size;
    const int32_t block = __shfl_sync(0xffffffffU, held, n - held_first);
    if constexpr (kUsesTma<Copies>) {
      ++n;
      if (lane == 0) {
        barrier_arrive_expecting(barrier, Sizes::kStageBytes);
        load_box(stage, copies.k, barrier, offset, piece.head, block);
        load_box(stage + Sizes::kHalfBytes, copies.v, barrier, offset, piece.head, block);
      }
      return;
    }
    const int64_t place =
        block * p.block_bytes + offset * p.token_bytes + piece.head * p.head_bytes;
    constexpr int kTokensAtOnce = 32 / Sizes::kChunks;
    const int chunk = lane % Sizes::kChunks;
    const int first = lane / Sizes::kChunks;
    const int64_t from = place + first * p.token_bytes + chunk * 16;
    const int32_t valid = piece.item.seq_len - tile * kDecodeTile;
    ++n;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const char* base = (half == 0 ? p.k : p.v) + from;
#pragma unroll
      for (int i = 0; i < kDecodeTile / kTokensAtOnce; ++i) {
        const int token = first + i * kTokensAtOnce;
        const uint32_t to = stage + half * Sizes::kHalfBytes + Sizes::place(token, chunk);
        copy16_async(to, base + i * kTokensAtOnce * p.token_bytes, token < valid);
      }
    }
    copy_commit();
  }
};

// A warp's ring of stages: `feed` is the producer, the arithmetic the consumer.
template <int kDim, int kHeadTiles, typename Copies>
struct TileRing {
  using Sizes = RingSizes<kDim, kHeadTiles, Copies>;
  TileFeed<kDim, Copies> feed;
  const Copies& copies;
  uint32_t base;
  uint32_t barriers;   // one a stage, for TMA
  uint32_t phase = 0;  // of the stages from `first` to the ring's end
  int first = 0;       // the stage of the oldest tile
  int ahead = 0;       // tiles loaded or in flight, and not yet consumed

  [[nodiscard]] __device__ int slot(int i) const {
    const int at = first + i;
    return at >= Sizes::kStages ? at - Sizes::kStages : at;
  }
  [[nodiscard]] __device__ uint32_t stage(int i) const {
    return base + slot(i) * Sizes::kStageBytes;
  }
  __device__ void fill(const NativeParams& p,
                       const PieceQueue& queue,
                       int reach,
                       bool with_newest) {
    while (ahead < Sizes::kStages && feed.find(queue, reach) && (with_newest || !feed.newest())) {
      feed.copy(p, copies, stage(ahead), barriers + slot(ahead) * 8);
      ++ahead;
    }
  }
  // Waits for the oldest tile. fill must have started its load.
  __device__ uint32_t front() const {
    if constexpr (kUsesTma<Copies>) {
      barrier_wait(barriers + first * 8, phase);
      return stage(0);
    }
    if (ahead == Sizes::kStages) {
      copy_wait<Sizes::kStages - 1>();
    } else {
      copy_wait<0>();
    }
    __syncwarp();
    return stage(0);
  }
  __device__ void pop() {
    __syncwarp();
    --ahead;
    if (++first == Sizes::kStages) {
      first = 0;
      phase ^= 1;
    }
  }
};

}  // namespace
}  // namespace warprow::cuda
