// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/attention/native/stored_parts.cuh"

// Formula: paged_attention.h, for rows with a few query tokens, batch-invariant; in chunks of up to 24 (query, head)
//   pairs per KV head.
// Shapes: NativeParams; head_dim 64, 128 or 256, up to 16 query heads per KV head; a cache of bf16 or 8-bit floats.
// Mapping: a persistent grid. A CTA takes pieces (a run of whole parts for one chunk and one KV head) one by one. One warp
//   takes pieces, one loads tiles of 64 keys and values by TMA into rings, ahead into the next pieces. Four warps take
//   runs of two tiles: each computes the scores and weights of half a tile, transposed (keys x pairs) on the tensor
//   cores, then a quarter of the outputs' elements for both. In between they exchange maxima, then weights, through shared
//   memory. If one CTA computes a whole chunk, it merges the parts in registers. Otherwise each warp writes its share of
//   every part to scratch, and the last warp that arrives for a share merges it. With DecodeRope the warp that takes pieces
//   also norms, rotates and writes the pieces' new keys and values, and the four warps norm and rotate the queries.
// Bytes moved: the visible keys and values once; for a split chunk 2 * pairs * (head_dim + 8) * 4 per part and KV head.
// Numerics: order.cuh over the parts of parts.h: bit-equal with the prompt kernels for parts.
// Preconditions: causal, or chunks of one query; native_schedule ran for these lengths with in_parts; if settled, what
//   ScheduledAttentionArgs::settled asserts; sm_90a.
// Origin: flash-decoding (Dao et al., 2023); our own order and pipeline.
namespace warprow::cuda {
namespace {

// A warp's part of the work on all pieces.
template <int kDim, int kHeadTiles, KvFormat kFormat>
struct PartWorker {
  using State = PartState<kDim, kHeadTiles, kFormat, kDecodeWarps>;
  using Exchange = PartExchange<kHeadTiles>;
  using Tiles = Ring<PartSizes<kDim, kHeadTiles, kFormat>::kStages>;

  const NativeParams& p;
  Tiles keys, values;
  Exchange& exchange;
  Bf16* queries;      // shared, with a bf16 cache: of a piece, by pair
  HeadScales scales;  // of the piece's head
  uint32_t n = 0;     // tiles so far
  uint32_t runs = 0;  // of tiles
  State state;

  static __device__ void sync_warps() { named_sync(1, kDecodeThreads); }
  static __device__ void release(const Tiles& ring, uint32_t n) {
    fence_async_proxy();  // ldmatrix read the tile
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      barrier_arrive(ring.empty(n));
    }
  }

  // Adds up to kRunTiles tiles from a position on.
  __device__ void add_run(const DecodeItem& item, int32_t position, int tiles) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int tile = warp / kTileWarps;
    const int share = warp % kTileWarps;
    auto& tops = exchange.max[runs++ % 2];
    typename State::Scores s;
    if (tile < tiles) {
      keys.wait_full(n + tile);
      state.score(s, keys.stage(n + tile), share);
      release(keys, n + tile);
      state.mask(s, p, item, position + tile * kPartTile, share, scales);
      state.leave_max(s, tops[tile][share]);
    }
    sync_warps();
    if (tile < tiles) {
      state.leave_weights(s, tops, tile, share, scales.exponent, exchange.weights[tile]);
    }
    sync_warps();
#pragma unroll 1
    for (int t = 0; t < tiles; ++t, ++n) {
      state.take_weights(exchange.weights[t], tops[t], scales.exponent);
      values.wait_full(n);
      state.add_values(values.stage(n), item.seq_len - (position + t * kPartTile));
      release(values, n);
    }
  }

  // Loads the queries of a piece.
  __device__ void load_q(const Piece& piece) {
    if constexpr (kFormat == KvFormat::kBF16) {
      if (p.rope.on) {
        put_queries<kDim>(p, piece, queries);
        sync_warps();
        state.take_queries(p, piece, queries);
        return;
      }
    }
    state.load_q(p, piece);
  }

  __device__ void run(const PartQueue& queue) {
    Piece piece;
    bool more = queue.get(0, piece);
    if (more) {
      load_q(piece);
    }
    for (uint32_t k = 1; more; ++k) {
      const Piece done = piece;
      if constexpr (kFormat != KvFormat::kBF16) {
        scales = head_scales<kFormat>(p, done.head);
      }
      const int32_t parts = add_parts<kRunTiles>(
          state, p, done, scales.exponent, [&](int32_t position, int32_t tiles) {
            add_run(done.item, position, tiles);
          });
      more = queue.get(k, piece);
      if (more) {
        load_q(piece);
      }
      if (done.item.num_parts > 1) {
        if (!arrive(p, done, parts)) {
          continue;
        }
        merge_stored(state, p, done, scales.exponent);
      }
      state.write(p, done, scales);
    }
  }
};

template <int kDim, int kHeadTiles, KvFormat kFormat>
struct PartControl {
  using Sizes = PartSizes<kDim, kHeadTiles, kFormat>;
  static constexpr bool kRopes = kFormat == KvFormat::kBF16;
  PartExchange<kHeadTiles> exchange;
  uint64_t keys[2 * Sizes::kStages];
  uint64_t values[2 * Sizes::kStages];
  uint64_t turns[2 * PartQueue::kSlots];
  uint64_t new_kv[2 * PartQueue::kSlots];
  alignas(16) int32_t slots[PartQueue::kSlots * PartQueue::kSlotInts];
  alignas(16) Bf16 queries[kRopes ? 8 * kHeadTiles * kQueryPitch<kDim> : 8];
};

template <int kDim, int kHeadTiles, KvFormat kFormat>
__global__ void __launch_bounds__(kPartThreads, PartSizes<kDim, kHeadTiles, kFormat>::kBlocksPerSm)
part_decode_kernel(const NativeParams p, const __grid_constant__ TmaMaps maps) {
  using Sizes = PartSizes<kDim, kHeadTiles, kFormat>;
  using Tiles = Ring<Sizes::kStages>;
  extern __shared__ __align__(1024) char memory[];
  auto& control =
      *reinterpret_cast<PartControl<kDim, kHeadTiles, kFormat>*>(memory + Sizes::kRingBytes);
  const uint32_t base = shared_address(memory);
  const Tiles keys{shared_address(control.keys), base, Sizes::kTileBytes};
  const Tiles values{
      shared_address(control.values), base + Sizes::kRingBytes / 2, Sizes::kTileBytes};
  const PartQueue queue{{shared_address(control.turns), 0, 0}, control.slots};
  const NewKv new_kv{shared_address(control.new_kv), 0, 0};
  if (threadIdx.x == 0) {
    new_kv.init(1, 1);
    keys.init(1, kTileWarps);
    values.init(1, kDecodeWarps);
    queue.turns.init(1, kDecodeWarps + 1);
    fence_async_proxy();
  }
  if (!p.settled) {
    pdl_wait();
  }
  __syncthreads();
  const int warp = threadIdx.x / 32;
  if (warp == kDealWarp) {
    deal_pieces<kDim, kFormat>(p, queue, new_kv);
  } else if (warp == kLoadWarp) {
    load_tiles<Sizes>(p, maps, queue, new_kv, keys, values);
  } else {
    pdl_wait();
    pdl_release();
    PartWorker<kDim, kHeadTiles, kFormat> worker{.p = p,
                                                 .keys = keys,
                                                 .values = values,
                                                 .exchange = control.exchange,
                                                 .queries = control.queries,
                                                 .scales = head_scales<kFormat>(p, 0)};
    worker.run(queue);
  }
}

template <int kDim, int kHeadTiles, KvFormat kFormat>
void launch_part_decode(Stream& stream, const NativeParams& params, int32_t num_blocks) {
  using Sizes = PartSizes<kDim, kHeadTiles, kFormat>;
  constexpr auto* kKernel = &part_decode_kernel<kDim, kHeadTiles, kFormat>;
  const TmaMaps maps{part_tile_map<kDim, kFormat>(params, params.k),
                     part_tile_map<kDim, kFormat>(params, params.v)};
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(num_blocks));
  shape.block = dim3(kPartThreads);
  shape.shared_bytes = Sizes::kRingBytes + sizeof(PartControl<kDim, kHeadTiles, kFormat>);
  allow_shared_bytes<kKernel>(shape.shared_bytes);
  launch(stream, "attention_decode", shape, kKernel, params, maps);
}

}  // namespace

template <int kDim, KvFormat kFormat>
void native_part_decode(Stream& stream, const NativeParams& params, int32_t num_blocks) {
  if (params.decode_pairs <= 8) {
    launch_part_decode<kDim, 1, kFormat>(stream, params, num_blocks);
  } else if (params.decode_pairs <= 16) {
    launch_part_decode<kDim, 2, kFormat>(stream, params, num_blocks);
  } else {
    launch_part_decode<kDim, 3, kFormat>(stream, params, num_blocks);
  }
}
template void native_part_decode<WR_HEAD_DIM, KvFormat::WR_KV_FORMAT>(Stream& stream,
                                                                      const NativeParams& params,
                                                                      int32_t num_blocks);

}  // namespace warprow::cuda
