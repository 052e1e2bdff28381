// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/attention/native_launch.h"
#include "kernels/attention/native_ptx.cuh"

#include <cuda_bf16.h>

// Formula: paged_attention.h, for rows with one query token.
// Shapes: NativeParams; head_dim 64 or 128, up to 16 query heads per KV head, bf16 cache.
// Mapping: a grid of as many blocks as the device holds; a block works on pieces (a run of key
//   tiles of one row, for one KV head) that it takes one by one. Of a piece's tiles of 16 tokens,
//   warp w takes every fourth from the w-th on, through a ring of its own in shared memory that it
//   fills by cp.async, running ahead into the next piece; nothing waits for another warp until a
//   piece's end, where the warps add up. Scores and outputs are computed transposed (tokens x
//   heads, dims x heads) on the tensor cores, so that a group of up to 8 heads fills the narrow
//   side. Of a row that was cut the parts go to scratch; the block that brings the last one adds
//   them up.
// Bytes moved: the visible keys and values once; of a row that was cut 2 * group * (head_dim + 2) *
//   4 a part and KV head. About 64 KiB are under way per block, two blocks an SM.
// Numerics: bf16 products, float32 sums, softmax weights rounded to bf16 before they meet the
//   values. Which tokens are added up first depends on the cuts, so on the whole batch.
// Preconditions: query token of row r is r; native_schedule ran for these lengths; if settled, what
//   ScheduledAttentionArgs says.
// Origin: flash-decoding (Dao et al., 2023); our own layout and pipeline.
namespace warprow::cuda {
namespace {

constexpr int kDecodeThreads = 32 * kDecodeWarps;       // that compute
constexpr int kDecodeAllThreads = kDecodeThreads + 32;  // and the warp that finds work for them

template <int kDim, int kHeadTiles>
struct DecodeSizes {
  static constexpr int kChunks = kDim / 8;  // of 16 bytes in a token's row
  static constexpr int kRowBytes = kDim * 2;
  static constexpr int kHalfBytes = kDecodeTile * kRowBytes;  // keys, then values
  static constexpr int kStageBytes = 2 * kHalfBytes;
  static constexpr int kStages = (kHeadTiles == 1 ? 3 : 5) * 128 / kDim;
  static constexpr int kBlocksPerSm = kHeadTiles == 1 ? 2 : 1;
  static constexpr int kHeads = 8 * kHeadTiles;
  static constexpr int kPitch = kDim + 4;  // floats of a head's output in the exchange
  static constexpr int kRingBytes = kDecodeWarps * kStages * kStageBytes;
  static constexpr int kExchangeFloats = kDecodeWarps * kHeads * (kPitch + 2);
  static constexpr int kSharedBytes = kRingBytes + kExchangeFloats * 4;
};

// Which of its row's blocks a tile is in. Exact for up to 2^32 / (tiles of a block) tiles.
__device__ __forceinline__ int32_t block_of(const NativeParams& p, int32_t tile) {
  return p.tiles_reciprocal == 0 ? tile : static_cast<int32_t>(__umulhi(tile, p.tiles_reciprocal));
}

// An item for one KV head.
struct Piece {
  DecodeItem item;
  int32_t head;
};

// The pieces of a block, in order. The first two are known; which the k-th is gets known while the
// block is at k - 2, so that copies can run ahead into the piece after the current one.
struct PieceQueue {
  static constexpr int kSlots = 4;
  static constexpr int kSlotInts = 12;
  int32_t* slots;  // shared [kSlots, kSlotInts]: the item, the head (-1: there is none)
  int32_t num_pieces;

  [[nodiscard]] __device__ bool dealt() const {
    return num_pieces > 2 * static_cast<int32_t>(gridDim.x);
  }
  // One thread: takes a piece for two after the current one. A launch takes as many as there are
  // pieces, so the count wraps with the last.
  [[nodiscard]] __device__ int32_t take(const NativeParams& p) const {
    return static_cast<int32_t>(atomicInc(&p.scratch.counts->taken, num_pieces - 1) +
                                2 * gridDim.x);
  }
  // One warp: what put needs to know of a piece, an integer a lane.
  [[nodiscard]] __device__ int32_t fetch(const NativeParams& p, int32_t number) const {
    if (number >= num_pieces) {
      return -1;
    }
    const int lane = threadIdx.x % 32;
    const int32_t item = number / p.num_kv_heads;
    return lane < 8 ? __ldcg(reinterpret_cast<const int32_t*>(p.scratch.items + item) + lane)
                    : number - item * p.num_kv_heads;
  }
  __device__ void put(int k, int32_t fetched) const {
    if (threadIdx.x % 32 < 9) {
      slots[k % kSlots * kSlotInts + threadIdx.x % 32] = fetched;
    }
  }
  [[nodiscard]] __device__ bool has(int k) const { return slots[k % kSlots * kSlotInts + 8] >= 0; }
  [[nodiscard]] __device__ Piece get(int k) const {
    const auto* slot = reinterpret_cast<const int4*>(slots + k % kSlots * kSlotInts);
    const int4 a = slot[0];
    const int4 b = slot[1];
    return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}, slot[2].x};
  }
};

// A warp's way through its tiles, ahead of the arithmetic.
template <int kDim>
struct TileFeed {
  Piece piece;
  int k = -1;     // which of the block's pieces it is
  int32_t n = 0;  // tiles of this warp in the piece that are on their way
  // Lane l holds the block of the warp's tile held_first + l of the piece. Blocks of the two pieces
  // to come are fetched ahead, and not looked at before they are wanted.
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
    return p.block_table + item.table_row * p.table_stride + block_of(p, tile);
  }
  // Once for every piece of the block, before the feed can get there.
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

  // Whether the warp has a next tile in its block's pieces up to the `reach`-th.
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
  // Whether the tile that was found holds the row's newest token.
  [[nodiscard]] __device__ bool newest() const {
    const int32_t tile =
        piece.item.tile + static_cast<int32_t>(threadIdx.x / 32) + n * kDecodeWarps;
    return (tile + 1) * kDecodeTile >= piece.item.seq_len;
  }

  // Starts the copy of the tile that was found.
  __device__ void copy(const NativeParams& p, uint32_t stage) {
    using Sizes = DecodeSizes<kDim, 1>;
    const int lane = threadIdx.x % 32;
    if (n >= held_first + 32) {
      held_first = n;
      held = __ldcg(entry(p, piece.item, n));
    }
    const int32_t tile =
        piece.item.tile + static_cast<int32_t>(threadIdx.x / 32) + n * kDecodeWarps;
    const int32_t offset = tile * kDecodeTile - block_of(p, tile) * p.block_size;
    const int64_t place = __shfl_sync(0xffffffffU, held, n - held_first) * p.block_bytes +
                          offset * p.token_bytes + piece.head * p.head_bytes;
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
        const uint32_t to = stage + half * Sizes::kHalfBytes + token * Sizes::kRowBytes +
                            ((chunk ^ (token & 7)) * 16);
        copy16_async(to, base + i * kTokensAtOnce * p.token_bytes, token < valid);
      }
    }
    copy_commit();
  }
};

// A warp's ring of stages between the feed and the arithmetic.
template <int kDim, int kHeadTiles>
struct TileRing {
  using Sizes = DecodeSizes<kDim, kHeadTiles>;
  TileFeed<kDim> feed;
  uint32_t base;
  int first = 0;  // the stage of the oldest tile
  int ahead = 0;  // tiles that were copied, or are under way, and not yet used

  [[nodiscard]] __device__ uint32_t stage(int i) const {
    const int at = first + i;
    return base + (at >= Sizes::kStages ? at - Sizes::kStages : at) * Sizes::kStageBytes;
  }
  __device__ void fill(const NativeParams& p,
                       const PieceQueue& queue,
                       int reach,
                       bool with_newest) {
    while (ahead < Sizes::kStages && feed.find(queue, reach) && (with_newest || !feed.newest())) {
      feed.copy(p, stage(ahead));
      ++ahead;
    }
  }
  // Waits for the oldest tile; fill has made sure that there is one.
  __device__ uint32_t front() const {
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
    first = first + 1 == Sizes::kStages ? 0 : first + 1;
    --ahead;
  }
};

// What a warp knows of its tiles of a piece: for each head the running maximum (in powers of two),
// the sum of weights (each lane those of its tokens) and the output, transposed.
template <int kDim, int kHeadTiles>
struct DecodeState {
  static constexpr int kSteps = kDim / 16;
  uint32_t q[kHeadTiles][kSteps][2];
  float o[kHeadTiles][kSteps][4];
  float max[kHeadTiles][2];
  float sum[kHeadTiles][2];

  // Lane (g, t) holds elements 2t, 2t + 1, 2t + 8, 2t + 9 of every 16 of head g.
  __device__ void load_q(const NativeParams& p, int32_t row, int32_t kv_head) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
      const int head = h * 8 + lane / 4;
      const auto* from = static_cast<const __nv_bfloat16*>(p.q) + row * p.q_stride +
                         (kv_head * p.group + head) * kDim + (lane % 4) * 2;
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        q[h][s][0] = 0;
        q[h][s][1] = 0;
        if (head < p.group) {
          q[h][s][0] = *reinterpret_cast<const uint32_t*>(from + s * 16);
          q[h][s][1] = *reinterpret_cast<const uint32_t*>(from + s * 16 + 8);
        }
      }
    }
  }
  __device__ void reset() {
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          o[h][s][i] = 0.0F;
        }
      }
      max[h][0] = max[h][1] = kNoMax;
      sum[h][0] = sum[h][1] = 0.0F;
    }
  }

  // Scores of 16 tokens: lane (g, t) gets tokens g and g + 8 for heads 2t and 2t + 1. Four sums
  // side by side, since each product waits for the one before it.
  __device__ void score(float (&s)[kHeadTiles][4], uint32_t keys) const {
    using Sizes = DecodeSizes<kDim, kHeadTiles>;
    const int lane = threadIdx.x % 32;
    const int token = lane % 16;
    const uint32_t row = keys + token * Sizes::kRowBytes;
    uint32_t a[kSteps][4];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      load_matrices(a[step], row + (((2 * step + lane / 16) ^ (token & 7)) * 16));
    }
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
      float sums[4][4] = {};
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        mma_bf16(sums[step % 4], a[step], q[h][step][0], q[h][step][1]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[h][i] = (sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i]);
      }
    }
  }

  // Turns scores into weights under the new maximum; the output so far is brought under it too.
  __device__ void weigh(float (&s)[4], int h) {
    float top[2] = {fmaxf(s[0], s[2]), fmaxf(s[1], s[3])};
#pragma unroll
    for (int d = 4; d < 32; d *= 2) {
      top[0] = fmaxf(top[0], __shfl_xor_sync(0xffffffffU, top[0], d));
      top[1] = fmaxf(top[1], __shfl_xor_sync(0xffffffffU, top[1], d));
    }
    if (__any_sync(0xffffffffU, top[0] > max[h][0] || top[1] > max[h][1])) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float higher = fmaxf(max[h][i], top[i]);
        const float shrink = exp2_fast(max[h][i] - higher);
        max[h][i] = higher;
        sum[h][i] *= shrink;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          o[h][step][i] *= shrink;
          o[h][step][i + 2] *= shrink;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[i] = exp2_fast(s[i] - max[h][i % 2]);
    }
    sum[h][0] += s[0] + s[2];
    sum[h][1] += s[1] + s[3];
  }

  // One tile that has arrived: tokens position .. position + 15, of which [low, high) count.
  __device__ void add_tile(
      const NativeParams& p, uint32_t stage, int32_t position, int32_t low, int32_t high) {
    using Sizes = DecodeSizes<kDim, kHeadTiles>;
    const int lane = threadIdx.x % 32;
    float s[kHeadTiles][4];
    score(s, stage);
    uint32_t values[kSteps][4];  // on their way while the weights are made
    const int value_token = lane % 8 + (lane / 16) * 8;
    const uint32_t value_row = stage + Sizes::kHalfBytes + value_token * Sizes::kRowBytes;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int chunk = (2 * step + (lane / 8) % 2) ^ (value_token & 7);
      load_matrices_transposed(values[step], value_row + chunk * 16);
    }
    uint32_t weights[kHeadTiles][2];
    const bool whole = position >= low && position + kDecodeTile <= high;
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[h][i] = to_log2_score(s[h][i], p.scale * kLog2E, p.scale, p.soft_cap);
      }
      if (!whole) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int token = position + lane / 4 + (i / 2) * 8;
          s[h][i] = token >= low && token < high ? s[h][i] : -INFINITY;
        }
      }
      weigh(s[h], h);
      weights[h][0] = transpose_matrix(pack_bf16(s[h][0], s[h][1]));
      weights[h][1] = transpose_matrix(pack_bf16(s[h][2], s[h][3]));
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h) {
        mma_bf16(o[h][step], values[step], weights[h][0], weights[h][1]);
      }
    }
  }

  // Puts this warp's result into the exchange.
  __device__ void put(float* exchange) {
    using Sizes = DecodeSizes<kDim, kHeadTiles>;
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    float* outputs = exchange + warp * Sizes::kHeads * Sizes::kPitch;
    float* tops =
        exchange + kDecodeWarps * Sizes::kHeads * Sizes::kPitch + warp * Sizes::kHeads * 2;
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int head = h * 8 + (lane % 4) * 2 + i;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          float* at = outputs + head * Sizes::kPitch + step * 16 + lane / 4;
          at[0] = o[h][step][i];
          at[8] = o[h][step][i + 2];
        }
        float all = sum[h][i];
#pragma unroll
        for (int d = 4; d < 32; d *= 2) {
          all += __shfl_xor_sync(0xffffffffU, all, d);
        }
        if (lane < 4) {
          tops[head * 2] = max[h][i];
          tops[head * 2 + 1] = all;
        }
      }
    }
  }
};

// Sums of parts: a thread has four elements of one head.
struct Gathered {
  float4 o = {0.0F, 0.0F, 0.0F, 0.0F};
  float max = kNoMax;
  float sum = 0.0F;

  __device__ void add(const float4& part, float part_max, float part_sum) {
    const float higher = fmaxf(max, part_max);
    const float mine = exp2_fast(max - higher);
    const float theirs = exp2_fast(part_max - higher);
    o.x = o.x * mine + part.x * theirs;
    o.y = o.y * mine + part.y * theirs;
    o.z = o.z * mine + part.z * theirs;
    o.w = o.w * mine + part.w * theirs;
    sum = sum * mine + part_sum * theirs;
    max = higher;
  }

  __device__ void write(
      const NativeParams& p, int32_t row, int32_t head, int32_t head_dim, int32_t first) {
    if (p.sinks != nullptr) {
      add({0.0F, 0.0F, 0.0F, 0.0F}, p.sinks[head] * kLog2E, 1.0F);
    }
    const float inverse = sum > 0.0F ? 1.0F / sum : 0.0F;
    auto* to = static_cast<__nv_bfloat16*>(p.out) + row * p.out_stride + head * head_dim + first;
    uint2 packed;
    packed.x = pack_bf16(o.x * inverse, o.y * inverse);
    packed.y = pack_bf16(o.z * inverse, o.w * inverse);
    *reinterpret_cast<uint2*>(to) = packed;
    if (p.lse != nullptr && first == 0) {
      p.lse[row * p.lse_stride + head] = (max + log2f(sum)) * kLn2;
    }
  }
};

// Adds up the parts of a row and KV head.
template <int kDim>
__device__ void gather_parts(const NativeParams& p, const Piece& piece) {
  const int threads_per_head = kDim / 4;
  const int64_t floats = partial_floats(p.group, kDim);
  const int element = static_cast<int>(threadIdx.x) % threads_per_head * 4;
  for (int h = static_cast<int>(threadIdx.x) / threads_per_head; h < p.group;
       h += kDecodeThreads / threads_per_head) {
    Gathered all;
#pragma unroll 8
    for (int i = 0; i < piece.item.num_parts; ++i) {
      const float* part =
          p.scratch.partials + ((piece.item.first_part + i) * p.num_kv_heads + piece.head) * floats;
      const float* tops = part + p.group * kDim + h * 2;
      all.add(__ldcg(reinterpret_cast<const float4*>(part + h * kDim + element)),
              __ldcg(tops),
              __ldcg(tops + 1));
    }
    all.write(p, piece.item.row, piece.head * p.group + h, kDim, element);
  }
}

// Adds up the warps and writes the output of a row, or of a part of one.
template <int kDim, int kHeadTiles>
__device__ void finish_piece(const NativeParams& p, const Piece& piece, const float* exchange) {
  using Sizes = DecodeSizes<kDim, kHeadTiles>;
  const int threads_per_head = kDim / 4;
  const int element = static_cast<int>(threadIdx.x) % threads_per_head * 4;
  const int64_t slot =
      (piece.item.first_part + piece.item.part) * int64_t{p.num_kv_heads} + piece.head;
  float* part = p.scratch.partials + slot * partial_floats(p.group, kDim);
  for (int h = static_cast<int>(threadIdx.x) / threads_per_head; h < p.group;
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
      all.write(p, piece.item.row, piece.head * p.group + h, kDim, element);
    } else {
      *reinterpret_cast<float4*>(part + h * kDim + element) = all.o;
      if (element == 0) {
        part[p.group * kDim + h * 2] = all.max;
        part[p.group * kDim + h * 2 + 1] = all.sum;
      }
    }
  }
}

// What the warps of a block share beside the ring and the exchange.
struct DecodeShared {
  int32_t slots[PieceQueue::kSlots * PieceQueue::kSlotInts];
  int32_t part_was_last;  // the part that the piece before brought was its row's last to come
};

// Says that a part is written, after a barrier behind its writes; true: it was its row's last to
// come.
__device__ bool arrive(const NativeParams& p, const Piece& piece) {
  int32_t* count = p.scratch.arrivals + piece.item.row * p.num_kv_heads + piece.head;
  __threadfence();
  const bool last = atomicAdd(count, 1) == piece.item.num_parts - 1;
  if (last) {
    __threadfence();
    *count = 0;
  }
  return last;
}

// The warp that finds work: it takes pieces and fetches what they are, and tells which parts were
// the last of their rows. All of it waits for memory, which the other warps need not notice; the
// takes are under way while the arrivals are.
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

template <int kDim, int kHeadTiles>
__device__ void work(const NativeParams& p,
                     const PieceQueue& queue,
                     const DecodeShared& shared,
                     TileRing<kDim, kHeadTiles>& ring,
                     float* exchange) {
  DecodeState<kDim, kHeadTiles> state;
  Piece before = {};
  if (queue.has(0)) {
    const Piece first = queue.get(0);
    state.load_q(p, first.item.row, first.head);
  }
  for (int k = 0; queue.has(k); ++k) {
    const Piece piece = queue.get(k);
    state.reset();
    const int32_t low = p.window > 0 ? piece.item.seq_len - p.window : 0;
    ring.fill(p, queue, k + 1, true);
#pragma unroll 1
    for (int t = threadIdx.x / 32; t < piece.item.num_tiles; t += kDecodeWarps) {
      const uint32_t stage = ring.front();
      state.add_tile(p, stage, (piece.item.tile + t) * kDecodeTile, low, piece.item.seq_len);
      ring.pop();
      ring.fill(p, queue, k + 1, true);
    }
    if (queue.has(k + 1)) {
      const Piece next = queue.get(k + 1);
      state.load_q(p, next.item.row, next.head);
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

template <int kDim, int kHeadTiles>
__global__ void __launch_bounds__(kDecodeAllThreads, DecodeSizes<kDim, kHeadTiles>::kBlocksPerSm)
decode_kernel(const NativeParams p) {
  using Sizes = DecodeSizes<kDim, kHeadTiles>;
  extern __shared__ __align__(16) char memory[];
  __shared__ __align__(16) DecodeShared shared;
  const int warp = threadIdx.x / 32;
  const bool manages = warp == kDecodeWarps;
  if (!p.settled) {
    pdl_wait();
  }
  const PieceQueue queue{shared.slots, __ldcg(&p.scratch.counts->num_pieces)};
  if (manages) {
    const auto block = static_cast<int32_t>(blockIdx.x);
    const int32_t first = queue.fetch(p, block);
    const int32_t second = queue.fetch(p, block + static_cast<int32_t>(gridDim.x));
    queue.put(0, first);
    queue.put(1, second);
  }
  __syncthreads();
  TileRing<kDim, kHeadTiles> ring;
  if (!manages) {
    ring.base = shared_address(memory) + warp * Sizes::kStages * Sizes::kStageBytes;
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

template <int kDim, int kHeadTiles>
void launch_decode(Stream& stream, const NativeParams& params, int32_t num_blocks) {
  using Sizes = DecodeSizes<kDim, kHeadTiles>;
  auto* kernel = &decode_kernel<kDim, kHeadTiles>;
  static const bool raised = [&] {
    WR_CUDA(cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Sizes::kSharedBytes));
    return true;
  }();
  static_cast<void>(raised);
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(num_blocks));
  shape.block = dim3(kDecodeAllThreads);
  shape.shared_bytes = Sizes::kSharedBytes;
  launch(stream, "attention_decode", shape, kernel, params);
}

template <int kDim>
void launch_decode(Stream& stream, const NativeParams& params, int32_t num_blocks) {
  if (params.group <= 8) {
    launch_decode<kDim, 1>(stream, params, num_blocks);
  } else {
    launch_decode<kDim, 2>(stream, params, num_blocks);
  }
}

}  // namespace
}  // namespace warprow::cuda
