// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/cuda/pdl.cuh"
#include "kernels/attention/native/decode_rope.cuh"
#include "kernels/attention/native/decode_tiles.cuh"
#include "kernels/attention/native/operands.cuh"
#include "kernels/attention/native/params.h"
#include "kernels/attention/native/parts.h"
#include "kernels/cuda/mbarrier.cuh"
#include "kernels/cuda/pipeline.cuh"

// The two producer warps of the batch-invariant decode kernel (part_decode.cuh), and their rings: one warp takes pieces, one
// loads their keys and values by TMA. With two loading warps a thread could have only 128 registers instead of 168.
namespace warprow::cuda {
namespace {

constexpr int kPartThreads = kDecodeThreads + 64;
constexpr int kDealWarp = kDecodeWarps;
constexpr int kLoadWarp = kDecodeWarps + 1;
constexpr int kPartBoxes = kPartTile / kDecodeTile;   // TMA boxes of a tile
constexpr int kRunTiles = 2;                          // that the compute warps take at once
constexpr int kTileWarps = kDecodeWarps / kRunTiles;  // that compute a tile's scores

// The keys of a tile are a stage of one ring, its values a stage of another.
template <int kDim, int kHeadTiles, KvFormat kFormat>
struct PartSizes {
  static constexpr int kBytes = Operands<kFormat>::kBytes;
  static constexpr int kRowBytes = kDim * kBytes < 128 ? 64 : 128;  // of a box in shared memory
  static constexpr int kBoxBytes = kDecodeTile * kDim * kBytes;
  static constexpr int kTileBytes = kPartBoxes * kBoxBytes;
  // As many bytes in flight with either format.
  static constexpr int kStages =
      (kDim > 128 ? 3 : (kHeadTiles == 1 ? 3 : 5) * 128 / kDim) * 2 / kBytes;
  static constexpr int kRingBytes = 2 * kStages * kTileBytes;
  static constexpr int kBlocksPerSm = kHeadTiles == 1 && kDim <= 128 ? 2 : 1;
  static_assert(kStages >= kRunTiles);

  // Offset of 16 bytes of a token in a box, with TMA's swizzle of its rows.
  [[nodiscard]] static __device__ int place(int token, int chunk) {
    if constexpr (kRowBytes == 64) {
      return token * 64 + (chunk ^ (token / 2 % 4)) * 16;
    } else {
      return DecodeSizes<kDim, kHeadTiles>::place(token, chunk);
    }
  }
};

// Tensor map of a layer's keys or values: a box is a decode tile's tokens of one head.
template <int kDim, KvFormat kFormat>
CUtensorMap part_tile_map(const NativeParams& p, const char* base) {
  if constexpr (kFormat == KvFormat::kBF16) {
    return decode_tile_map(base, p, kDim);
  } else {
    constexpr uint32_t kRow = PartSizes<kDim, 1, kFormat>::kRowBytes;
    constexpr uint32_t kParts = kDim / kRow;
    return tensor_map<5>(base,
                         {kRow,
                          static_cast<uint64_t>(p.block_size),
                          kParts,
                          static_cast<uint64_t>(p.num_kv_heads),
                          uint64_t{1} << 31},
                         {static_cast<uint64_t>(p.token_bytes),
                          kRow,
                          static_cast<uint64_t>(p.head_bytes),
                          static_cast<uint64_t>(p.block_bytes)},
                         {kRow, static_cast<uint32_t>(kDecodeTile), kParts, 1, 1},
                         CU_TENSOR_MAP_L2_PROMOTION_NONE,
                         CU_TENSOR_MAP_DATA_TYPE_UINT8,
                         kRow == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B);
  }
}

// The pieces of a CTA, in order. The first two are fixed. The k-th is taken when the CTA begins piece k - 2, so that
// loads can run ahead.
struct PartQueue {
  static constexpr uint32_t kSlots = 2;
  static constexpr int kPieceInts = 12;
  static constexpr int kSlotInts = kPieceInts + 32;
  Ring<kSlots> turns;  // filled by one warp, used by the others
  int32_t*
      slots;  // shared [kSlots, kSlotInts]: the item, the head (-1: no piece), the first 32 boxes' blocks

  // A whole warp waits for piece k. Returns false if there is none. `block`: lane l gets the block of the l-th box.
  __device__ bool get(uint32_t k, Piece& piece, int32_t* block = nullptr) const {
    turns.wait_full(k);
    const int32_t* slot = slots + k % kSlots * kSlotInts;
    const auto* four = reinterpret_cast<const int4*>(slot);
    const int4 a = four[0];
    const int4 b = four[1];
    const int4 c = four[2];
    piece = {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w, c.x, c.y, c.z}, c.w};
    if (block != nullptr) {
      *block = slot[kPieceInts + threadIdx.x % 32];
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      barrier_arrive(turns.empty(k));
    }
    return piece.head >= 0;
  }
  __device__ void put(uint32_t k, int32_t field, int32_t block) const {
    const int lane = threadIdx.x % 32;
    int32_t* slot = slots + k % kSlots * kSlotInts;
    if (lane < kPieceInts) {
      slot[lane] = field;
    }
    slot[kPieceInts + lane] = block;
    __syncwarp();
    if (lane == 0) {
      barrier_arrive(turns.full(k));
    }
  }
};

// The block of the n-th box of a piece; past the last one, of the last.
__device__ __forceinline__ int32_t block_of_box(
    const NativeParams& p, int32_t table_begin, int32_t tile, int32_t num_tiles, int32_t n) {
  return __ldcg(p.block_table.cells + table_begin + block_of(p, tile + min(n, num_tiles - 1)));
}

// A ring of barriers without data: the loading warp waits on it until this kernel has written a piece's new keys and values.
using NewKv = Ring<PartQueue::kSlots>;

// One warp: takes pieces and fetches their descriptions. It also writes a piece's new keys and values to the cache, but only
// after it has queued the next piece: so the loading warp has two pieces whose older keys it loads meanwhile.
template <int kDim, KvFormat kFormat>
__device__ void deal_pieces(const NativeParams& p, const PartQueue& queue, const NewKv& new_kv) {
  const int lane = threadIdx.x % 32;
  const bool writes = kFormat == KvFormat::kBF16 && p.rope.on && p.rope.writes_kv;
  int32_t before = 0;  // the previous piece's `field`
  const PieceQueue pieces{nullptr, __ldcg(&p.scratch.counts->num_pieces)};
  if (p.rope.on) {
    touch_norms<kDim>(p.rope);
  }
  for (uint32_t k = 0;; ++k) {
    queue.turns.wait_empty(k);
    int32_t number = PieceQueue::own(k);
    if (k == 2) {
      pdl_wait();
    }
    if (k >= 2) {
      number = lane == 0 && pieces.dealt() ? pieces.take(p) : pieces.num_pieces;
      number = __shfl_sync(0xffffffffU, number, 0);
    }
    const int32_t field = pieces.fetch(p, number);
    const int32_t table_begin = __shfl_sync(0xffffffffU, field, 1);
    const int32_t tile = __shfl_sync(0xffffffffU, field, 6);
    const int32_t num_tiles = __shfl_sync(0xffffffffU, field, 7);
    const bool any = number < pieces.num_pieces;
    queue.put(k, field, any ? block_of_box(p, table_begin, tile, num_tiles, lane) : 0);
    if constexpr (kFormat == KvFormat::kBF16) {
      if (writes && k >= 1) {
        if (k == 1) {
          pdl_wait();
        }
        write_new_kv<kDim>(p, piece_of_lanes(before));
        __syncwarp();
        if (lane == 0) {
          barrier_arrive(new_kv.full(k - 1));
        }
      }
      before = field;
    }
    if (!any) {
      // The counter wraps to 0 after num_pieces takes. This CTA has taken one time less than it has pieces: take once more.
      if (lane == 0 && pieces.dealt()) {
        static_cast<void>(pieces.take(p));
      }
      return;
    }
  }
}

// One warp: loads the keys and values of all pieces, keys a tile ahead of values.
template <typename Sizes, typename Tiles>
__device__ void load_tiles(const NativeParams& p,
                           const TmaMaps& maps,
                           const PartQueue& queue,
                           const NewKv& new_kv,
                           const Tiles& keys,
                           const Tiles& values) {
  const int lane = threadIdx.x % 32;
  const bool written_here = p.rope.on && p.rope.writes_kv;
  bool waited = !p.settled;
  uint32_t n = 0;
  Piece piece;
  int32_t held = 0;  // lane l: the block of box l of the last 32
  for (uint32_t k = 0; queue.get(k, piece, &held); ++k) {
    const DecodeItem& item = piece.item;
    int32_t coming = 0;  // of the next 32
    int32_t before = 0;  // the block of the lane's box of the tile before
    bool all_there = !written_here;
    const auto bring = [&](const Tiles& tiles, const CUtensorMap& map, int32_t t, int32_t block) {
      const int32_t boxes = min(kPartBoxes, item.num_tiles - t);
      const int32_t tile = item.tile + t + lane;
      const int32_t offset = tile * kDecodeTile - block_of(p, tile) * p.block_size;
      const uint32_t number = n + t / kPartBoxes;
      tiles.wait_empty(number);
      if (lane == 0) {
        barrier_arrive_expecting(tiles.full(number), boxes * Sizes::kBoxBytes);
      }
      __syncwarp();
      if (lane < boxes) {
        load_box(tiles.stage(number) + lane * Sizes::kBoxBytes,
                 map,
                 tiles.full(number),
                 offset,
                 piece.head,
                 block);
      }
    };
    for (int32_t t = 0; t < item.num_tiles; t += kPartBoxes) {
      if (t % 32 == 0) {
        held = t == 0 ? held : coming;
        if (t + 32 < item.num_tiles) {
          coming = block_of_box(p, item.table_begin, item.tile, item.num_tiles, t + 32 + lane);
        }
      }
      const int32_t boxes = min(kPartBoxes, item.num_tiles - t);
      const bool has_new = (item.tile + t + boxes) * kDecodeTile > item.num_old_keys;
      const int32_t block = __shfl_sync(0xffffffffU, held, t % 32 + lane % kPartBoxes);
      if (has_new && t > 0) {  // values of old keys need not wait
        bring(values, maps.v, t - kPartBoxes, before);
      }
      if (!waited && has_new) {
        pdl_wait();
        waited = true;
      }
      if (!all_there && has_new) {
        new_kv.wait_full(k);
        all_there = true;
      }
      bring(keys, maps.k, t, block);
      if (!has_new && t > 0) {
        bring(values, maps.v, t - kPartBoxes, before);
      }
      before = block;
    }
    if (item.num_tiles > 0) {
      bring(values, maps.v, (item.num_tiles - 1) / kPartBoxes * kPartBoxes, before);
    }
    n += (item.num_tiles + kPartBoxes - 1) / kPartBoxes;
  }
  if (!waited) {
    pdl_wait();
  }
}

}  // namespace
}  // namespace warprow::cuda
