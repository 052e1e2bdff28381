// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/attention/native/decode_state.cuh"
#include "kernels/attention/native/params.h"

// Formula: paged_attention.h, for rows with a few query tokens, in chunks of up to 24 (query, head) pairs per
//   KV head.
// Shapes: NativeParams; head_dim 64 or 128, up to 16 query heads per KV head, bf16 cache.
// Mapping: a persistent grid of as many CTAs as the device holds. A CTA takes pieces (a run of key tiles for
//   one chunk and one KV head) one by one. Of a piece's tiles of 16 tokens, warp w takes every fourth from
//   the w-th on. Each warp has its own ring of stages in shared memory, fills it by cp.async or, on Hopper,
//   by TMA, and prefetches into the next piece. Warps synchronise only at the end of a piece, where their
//   results are added up. Scores and outputs are computed transposed (tokens x pairs, dims x pairs) on the
//   tensor cores, so that up to 8 pairs fill the n dimension of the mma. The parts of a split chunk go to
//   scratch; the CTA that writes the last part adds them up.
// Bytes moved: the visible keys and values once; for a split row 2 * group * (head_dim + 2) * 4 per part and
//   KV head. About 64 KiB are in flight per CTA, with two CTAs an SM (more is slower).
// Numerics: bf16 products, float32 sums, softmax weights rounded to bf16 for the product with the values. The
//   order in which tokens are added up depends on the splits, and so on the whole batch.
// Preconditions: causal, or chunks of one query; native_schedule ran for these lengths; if settled, what
//   ScheduledAttentionArgs::settled asserts.
// Origin: flash-decoding (Dao et al., 2023); our own layout and pipeline.
namespace warprow::cuda {
namespace {

// Adds up the parts of a chunk and KV head.
template <int kDim>
__device__ void gather_parts(const NativeParams& p, const Piece& piece) {
  const int threads_per_head = kDim / 4;
  const int64_t floats = partial_floats(p.decode_pairs, kDim);
  const int pairs = piece.item.num_toks * p.group;
  const int element = static_cast<int>(threadIdx.x) % threads_per_head * 4;
  for (int h = static_cast<int>(threadIdx.x) / threads_per_head; h < pairs;
       h += kDecodeThreads / threads_per_head) {
    Gathered all;
#pragma unroll 8
    for (int i = 0; i < piece.item.num_parts; ++i) {
      const float* part =
          p.scratch.partials + ((piece.item.first_part + i) * p.num_kv_heads + piece.head) * floats;
      const float* tops = part + p.decode_pairs * kDim + h * 2;
      all.add(__ldcg(reinterpret_cast<const float4*>(part + h * kDim + element)),
              __ldcg(tops),
              __ldcg(tops + 1));
    }
    all.write(p, piece, h, kDim, element);
  }
}

// Adds up the warps' results and writes the output of a chunk, or of a part of one.
template <int kDim, int kHeadTiles>
__device__ void finish_piece(const NativeParams& p, const Piece& piece, const float* exchange) {
  using Sizes = DecodeSizes<kDim, kHeadTiles>;
  const int threads_per_head = kDim / 4;
  const int element = static_cast<int>(threadIdx.x) % threads_per_head * 4;
  const int64_t slot =
      (piece.item.first_part + piece.item.part) * int64_t{p.num_kv_heads} + piece.head;
  float* part = p.scratch.partials + slot * partial_floats(p.decode_pairs, kDim);
  const int pairs = piece.item.num_toks * p.group;
  for (int h = static_cast<int>(threadIdx.x) / threads_per_head; h < pairs;
       h += kDecodeThreads / threads_per_head) {
    Gathered all;
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) {
      const int head = w * Sizes::kHeads + h;
      const float* tops = exchange + kDecodeWarps * Sizes::kHeads * Sizes::kPitch + head * 2;
      all.add(*reinterpret_cast<const float4*>(exchange + head * Sizes::kPitch + element),
              tops[0],
              tops[1]);
    }
    if (piece.item.num_parts == 1) {
      all.write(p, piece, h, kDim, element);
    } else {
      *reinterpret_cast<float4*>(part + h * kDim + element) = all.o;
      if (element == 0) {
        part[p.decode_pairs * kDim + h * 2] = all.max;
        part[p.decode_pairs * kDim + h * 2 + 1] = all.sum;
      }
    }
  }
}

// Shared memory of a CTA besides the ring and the exchange.
struct DecodeShared {
  int32_t slots[PieceQueue::kSlots * PieceQueue::kSlotInts];
  int32_t part_was_last;  // the previous piece's part was the last of its chunk to be written
};

// Counts a part as written, after a barrier that follows its writes. Returns true if it was the last of its chunk.
__device__ bool arrive(const NativeParams& p, const Piece& piece) {
  int32_t* count = p.scratch.arrivals + piece.item.chunk * p.num_kv_heads + piece.head;
  __threadfence();
  const bool last = atomicAdd(count, 1) == piece.item.num_parts - 1;
  if (last) {
    __threadfence();
    *count = 0;
  }
  return last;
}

// The scheduler warp: takes pieces, fetches their descriptions, and tells the compute warps which parts were
// the last of their chunks. It hides this memory latency from the compute warps. The atomics of
// takes and arrivals overlap.
__device__ void manage(const NativeParams& p, const PieceQueue& queue, DecodeShared& shared) {
  const bool first_lane = threadIdx.x % 32 == 0;
  Piece before = {};
  for (int k = 0; queue.has(k); ++k) {
    const Piece piece = queue.get(k);
    const int32_t taken = first_lane && queue.dealt() ? queue.take(p) : 0;
    if (first_lane && before.item.num_parts > 1) {
      shared.part_was_last = arrive(p, before) ? 1 : 0;
    }
    __syncwarp();
    queue.put(k + 2, queue.dealt() ? queue.fetch(p, __shfl_sync(0xffffffffU, taken, 0)) : -1);
    __syncthreads();  // the exchange is full
    __syncthreads();  // the piece is finished
    before = piece;
  }
  if (first_lane && before.item.num_parts > 1) {
    shared.part_was_last = arrive(p, before) ? 1 : 0;
  }
  __syncthreads();
}

template <int kDim, int kHeadTiles, typename Copies>
__device__ void work(const NativeParams& p,
                     const PieceQueue& queue,
                     const DecodeShared& shared,
                     TileRing<kDim, kHeadTiles, Copies>& ring,
                     float* exchange) {
  DecodeState<kDim, kHeadTiles> state;
  Piece before = {};
  if (queue.has(0)) {
    const Piece first = queue.get(0);
    state.load_q(p, first);
  }
  for (int k = 0; queue.has(k); ++k) {
    const Piece piece = queue.get(k);
    state.reset();
    ring.fill(p, queue, k + 1, true);
#pragma unroll 1
    for (int t = threadIdx.x / 32; t < piece.item.num_tiles; t += kDecodeWarps) {
      const uint32_t stage = ring.front();
      state.add_tile(p, piece.item, stage, (piece.item.tile + t) * kDecodeTile);
      ring.pop();
      ring.fill(p, queue, k + 1, true);
    }
    if (queue.has(k + 1)) {
      const Piece next = queue.get(k + 1);
      state.load_q(p, next);
    }
    state.put(exchange);
    __syncthreads();
    if (before.item.num_parts > 1 && shared.part_was_last != 0) {
      gather_parts<kDim>(p, before);
    }
    finish_piece<kDim, kHeadTiles>(p, piece, exchange);
    before = piece;
    __syncthreads();
    ring.feed.expect(p, queue, k + 2);
  }
  __syncthreads();
  if (before.item.num_parts > 1 && shared.part_was_last != 0) {
    gather_parts<kDim>(p, before);
  }
}

template <int kDim, int kHeadTiles, typename Copies>
__global__ void __launch_bounds__(kDecodeAllThreads, DecodeSizes<kDim, kHeadTiles>::kBlocksPerSm)
decode_kernel(const NativeParams p, const __grid_constant__ Copies copies) {
  using Sizes = RingSizes<kDim, kHeadTiles, Copies>;
  extern __shared__ __align__(1024) char memory[];
  char* const barriers = memory + Sizes::kRingBytes + Sizes::kExchangeFloats * 4;
  auto& shared = *reinterpret_cast<DecodeShared*>(barriers + Sizes::kBarriers * 8);
  const int warp = threadIdx.x / 32;
  const bool manages = warp == kDecodeWarps;
  if (!p.settled) {
    pdl_wait();
  }
  const PieceQueue queue{shared.slots, __ldcg(&p.scratch.counts->num_pieces)};
  if (manages) {
    const int32_t first = queue.fetch(p, PieceQueue::own(0));
    const int32_t second = queue.fetch(p, PieceQueue::own(1));
    queue.put(0, first);
    queue.put(1, second);
  }
  TileRing<kDim, kHeadTiles, Copies> ring{
      .copies = copies,
      .base = shared_address(memory) + warp * Sizes::kStages * Sizes::kStageBytes,
      .barriers = shared_address(barriers) + warp * Sizes::kStages * 8};
  if constexpr (kUsesTma<Copies>) {
    if (!manages && threadIdx.x % 32 == 0) {
      for (int i = 0; i < Sizes::kStages; ++i) {
        barrier_init(ring.barriers + i * 8, 1);
      }
      fence_async_proxy();
    }
  }
  __syncthreads();
  if (!manages) {
    ring.feed.expect(p, queue, 0);
    ring.feed.expect(p, queue, 1);
    ring.fill(p, queue, 1, !p.settled);
  }
  if (p.settled) {
    pdl_wait();
  }
  pdl_release();
  if (manages) {
    manage(p, queue, shared);
  } else {
    work(p, queue, shared, ring, reinterpret_cast<float*>(memory + Sizes::kRingBytes));
  }
}

template <int kDim, int kHeadTiles, typename Copies>
void launch_decode(Stream& stream,
                   const NativeParams& params,
                   const Copies& copies,
                   int32_t num_blocks) {
  using Sizes = RingSizes<kDim, kHeadTiles, Copies>;
  constexpr int kSharedBytes = Sizes::kSharedBytes + static_cast<int>(sizeof(DecodeShared));
  constexpr auto* kKernel = &decode_kernel<kDim, kHeadTiles, Copies>;
  allow_shared_bytes<kKernel>(kSharedBytes);
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(num_blocks));
  shape.block = dim3(kDecodeAllThreads);
  shape.shared_bytes = kSharedBytes;
  launch(stream, "attention_decode", shape, kKernel, params, copies);
}

template <int kDim, typename Copies>
void launch_decode(Stream& stream,
                   const NativeParams& params,
                   const Copies& copies,
                   int32_t num_blocks) {
  if (params.decode_pairs <= 8) {
    launch_decode<kDim, 1>(stream, params, copies, num_blocks);
  } else if (params.decode_pairs <= 16) {
    launch_decode<kDim, 2>(stream, params, copies, num_blocks);
  } else {
    launch_decode<kDim, 3>(stream, params, copies, num_blocks);
  }
}

}  // namespace

template <int kDim, bool kTma>
void native_decode(Stream& stream, const NativeParams& params, int32_t num_blocks) {
  if constexpr (kTma) {
    launch_decode<kDim>(stream, params, tma_maps(params, kDim), num_blocks);
  } else {
    launch_decode<kDim>(stream, params, CpAsync{}, num_blocks);
  }
}
template void native_decode<WR_HEAD_DIM, WR_TMA>(Stream& stream,
                                                 const NativeParams& params,
                                                 int32_t num_blocks);

}  // namespace warprow::cuda
