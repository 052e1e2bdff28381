// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/attention/native_launch.h"
#include "kernels/attention/native_ptx.cuh"

#include <cuda_bf16.h>

// Formula: paged_attention.h, for rows with one query token.
// Shapes: NativeParams; head_dim 64 or 128, up to 16 query heads per KV head, bf16 cache.
// Mapping: a grid of as many blocks as the device holds, each with its DecodeShare of consecutive
//   (row, KV head) pairs. Of a pair's tiles of 16 tokens, warp w takes every fourth from the w-th on,
//   through a ring of its own in shared memory that it fills by cp.async, running ahead over pair and
//   row borders; nothing waits for another warp until a pair's end, where the warps add up. Scores and
//   outputs are computed transposed (tokens x heads, dims x heads) on the tensor cores, so that a
//   group of up to 8 heads fills the narrow side. A pair that was cut is written in parts; the block
//   that arrives last adds them up.
// Bytes moved: the visible keys and values once; of a pair that was cut 2 * group * (head_dim + 2) * 4
//   a part. About 64 KiB are under way per block, two blocks an SM.
// Numerics: bf16 products, float32 sums, softmax weights rounded to bf16 before they meet the values.
//   Which tokens are added up first depends on the cuts, so on the whole batch.
// Preconditions: query token of row r is r; native_schedule ran for these lengths.
// Origin: flash-decoding (Dao et al., 2023); our own layout and pipeline.
namespace warprow::cuda {
namespace {

constexpr int kDecodeThreads = 32 * kDecodeWarps;

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

// Steps through a share pair by pair.
struct PairWalk {
  int32_t row, head, tile;                  // the first tile of this block's part of the pair
  int32_t count;                            // tiles of the part
  int32_t left;                             // tiles of the share from this part on
  int32_t pair_tiles, seq_len, first_tile;  // of the row; first_tile is the pair's, in the sequence

  __device__ void load_row(const NativeParams& p) {
    seq_len = p.idx_mapping[row] < 0 ? 0 : p.seq_lens[row];
    pair_tiles = decode_tiles(seq_len, p.schedule_window);
    first_tile = (seq_len + kDecodeTile - 1) / kDecodeTile - pair_tiles;
  }
  __device__ void start(const NativeParams& p, const DecodeShare& share) {
    row = share.row;
    head = share.head;
    tile = share.tile;
    left = share.num_tiles;
    load_row(p);
    count = min(left, pair_tiles - tile);
  }
  __device__ bool next(const NativeParams& p) {
    left -= count;
    if (left <= 0) {
      return false;
    }
    tile = 0;
    if (++head == p.num_kv_heads) {
      head = 0;
      do {
        ++row;
        load_row(p);
      } while (pair_tiles == 0);
    }
    count = min(left, pair_tiles);
    return true;
  }
};

// A warp's way through its tiles, ahead of the arithmetic.
template <int kDim>
struct TileFeed {
  PairWalk walk;
  bool live = true;
  int32_t n = 0;          // tiles of this warp in the part that are on their way
  int32_t held_row = -1;  // lane l holds the place of tile held_tile + l * kDecodeWarps
  int32_t held_tile = -1;
  int64_t held_bytes = 0;

  __device__ void hold(const NativeParams& p, int32_t tile) {
    if (held_row == walk.row && tile >= held_tile && tile < held_tile + 32 * kDecodeWarps &&
        (tile - held_tile) % kDecodeWarps == 0) {
      return;
    }
    held_row = walk.row;
    held_tile = tile;
    const int32_t mine = tile + static_cast<int32_t>(threadIdx.x % 32) * kDecodeWarps;
    if (mine < walk.pair_tiles) {
      const int32_t token = (walk.first_tile + mine) * kDecodeTile;
      const int32_t block = token / p.block_size;
      const int64_t table = p.idx_mapping[walk.row] * p.table_stride;
      held_bytes = p.block_table[table + block] * p.block_bytes +
                   (token - block * p.block_size) * p.token_bytes;
    }
  }

  // Starts the copy of the warp's next tile into a stage of its ring, if there is one.
  __device__ void issue(const NativeParams& p, uint32_t stage) {
    using Sizes = DecodeSizes<kDim, 1>;
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    while (live && warp + n * kDecodeWarps >= walk.count) {
      live = walk.next(p);
      n = 0;
    }
    if (live) {
      const int32_t tile = walk.tile + warp + n * kDecodeWarps;
      hold(p, tile);
      ++n;
      const int64_t place =
          __shfl_sync(0xffffffffU, held_bytes, (tile - held_tile) / kDecodeWarps) +
          walk.head * p.head_bytes;
      constexpr int kTokensAtOnce = 32 / Sizes::kChunks;
      const int chunk = lane % Sizes::kChunks;
      const int first = lane / Sizes::kChunks;
      const int64_t from = place + first * p.token_bytes + chunk * 16;
      const int32_t valid = walk.seq_len - (walk.first_tile + tile) * kDecodeTile;
#pragma unroll
      for (int i = 0; i < kDecodeTile / kTokensAtOnce; ++i) {
        const int token = first + i * kTokensAtOnce;
        const uint32_t to = stage + token * Sizes::kRowBytes + ((chunk ^ (token & 7)) * 16);
        copy16_async(to, p.k + from + i * kTokensAtOnce * p.token_bytes, token < valid);
      }
#pragma unroll
      for (int i = 0; i < kDecodeTile / kTokensAtOnce; ++i) {
        const int token = first + i * kTokensAtOnce;
        const uint32_t to =
            stage + Sizes::kHalfBytes + token * Sizes::kRowBytes + ((chunk ^ (token & 7)) * 16);
        copy16_async(to, p.v + from + i * kTokensAtOnce * p.token_bytes, token < valid);
      }
    }
    copy_commit();
  }
};

// What a warp knows of its part of a pair: for each head the running maximum (in powers of two), the
// sum of weights (each lane those of its tokens) and the output, transposed.
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

  // Scores of 16 tokens: lane (g, t) gets tokens g and g + 8 for heads 2t and 2t + 1.
  __device__ void score(float (&s)[kHeadTiles][4], uint32_t keys) const {
    using Sizes = DecodeSizes<kDim, kHeadTiles>;
    const int lane = threadIdx.x % 32;
    const int token = lane % 16;
    const uint32_t row = keys + token * Sizes::kRowBytes;
    float odd[kHeadTiles][4] = {};
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[h][i] = 0.0F;
      }
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t a[4];
      load_matrices(a, row + (((2 * step + lane / 16) ^ (token & 7)) * 16));
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h) {
        mma_bf16(step % 2 == 0 ? s[h] : odd[h], a, q[h][step][0], q[h][step][1]);
      }
    }
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[h][i] += odd[h][i];
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
    const int token = lane % 8 + (lane / 16) * 8;
    const uint32_t row = stage + Sizes::kHalfBytes + token * Sizes::kRowBytes;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t a[4];
      load_matrices_transposed(a, row + (((2 * step + (lane / 8) % 2) ^ (token & 7)) * 16));
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h) {
        mma_bf16(o[h][step], a, weights[h][0], weights[h][1]);
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

// Adds up the parts of a pair that were written to scratch by blocks first .. last.
template <int kDim>
__device__ void gather_parts(const NativeParams& p, const PairWalk& pair, int first, int last) {
  const int threads_per_head = kDim / 4;
  const int64_t floats = partial_floats(p.group, kDim);
  const int element = static_cast<int>(threadIdx.x) % threads_per_head * 4;
  for (int h = static_cast<int>(threadIdx.x) / threads_per_head; h < p.group;
       h += kDecodeThreads / threads_per_head) {
    Gathered all;
#pragma unroll 4
    for (int block = first; block <= last; ++block) {
      const float* part = p.scratch.partials + (2 * block + (block == first ? 1 : 0)) * floats;
      const float* tops = part + p.group * kDim + h * 2;
      all.add(__ldcg(reinterpret_cast<const float4*>(part + h * kDim + element)),
              __ldcg(tops),
              __ldcg(tops + 1));
    }
    all.write(p, pair.row, pair.head * p.group + h, kDim, element);
  }
}

// The end of a block's part of a pair: adds up the warps and writes the output or a part; the block
// that brings a pair's last part adds those up.
template <int kDim, int kHeadTiles>
__device__ void finish_pair(const NativeParams& p,
                            const DecodeShare& share,
                            const PairWalk& pair,
                            const float* exchange) {
  using Sizes = DecodeSizes<kDim, kHeadTiles>;
  const int threads_per_head = kDim / 4;
  const int element = static_cast<int>(threadIdx.x) % threads_per_head * 4;
  const int block = static_cast<int>(blockIdx.x);
  const bool begins = pair.tile == 0;
  const bool whole = begins && pair.count == pair.pair_tiles;
  float* part =
      p.scratch.partials + (2 * block + (begins ? 1 : 0)) * int64_t{partial_floats(p.group, kDim)};
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
    if (whole) {
      all.write(p, pair.row, pair.head * p.group + h, kDim, element);
    } else {
      *reinterpret_cast<float4*>(part + h * kDim + element) = all.o;
      if (element == 0) {
        part[p.group * kDim + h * 2] = all.max;
        part[p.group * kDim + h * 2 + 1] = all.sum;
      }
    }
  }
  if (whole) {
    return;
  }
  const int first = begins ? block : share.first_pair_first_block;
  const int last = begins ? share.last_pair_last_block : share.first_pair_last_block;
  int32_t* arrivals = p.scratch.arrivals + pair.row * p.num_kv_heads + pair.head;
  __threadfence();
  __syncthreads();
  __shared__ int32_t others;
  if (threadIdx.x == 0) {
    others = atomicAdd(arrivals, 1);
  }
  __syncthreads();
  if (others == last - first) {
    __threadfence();
    gather_parts<kDim>(p, pair, first, last);
    if (threadIdx.x == 0) {
      *arrivals = 0;
    }
  }
}

template <int kDim, int kHeadTiles>
__global__ void __launch_bounds__(kDecodeThreads, DecodeSizes<kDim, kHeadTiles>::kBlocksPerSm)
decode_kernel(const NativeParams p) {
  using Sizes = DecodeSizes<kDim, kHeadTiles>;
  extern __shared__ __align__(16) char shared[];
  pdl_wait();
  pdl_release();
  const DecodeShare share = p.scratch.shares[blockIdx.x];
  if (share.num_tiles == 0) {
    return;
  }
  const int warp = threadIdx.x / 32;
  const uint32_t ring = shared_address(shared) + warp * Sizes::kStages * Sizes::kStageBytes;
  auto* exchange = reinterpret_cast<float*>(shared + Sizes::kRingBytes);

  PairWalk pair;
  pair.start(p, share);
  TileFeed<kDim> feed;
  feed.walk = pair;
#pragma unroll 1
  for (int s = 0; s + 1 < Sizes::kStages; ++s) {
    feed.issue(p, ring + s * Sizes::kStageBytes);
  }
  DecodeState<kDim, kHeadTiles> state;
  state.load_q(p, pair.row, pair.head);
  int stage = 0;
  int free_stage = Sizes::kStages - 1;
  while (true) {
    state.reset();
    const int32_t low = p.window > 0 ? pair.seq_len - p.window : 0;
#pragma unroll 1
    for (int t = warp; t < pair.count; t += kDecodeWarps) {
      copy_wait<Sizes::kStages - 2>();
      __syncwarp();
      feed.issue(p, ring + free_stage * Sizes::kStageBytes);
      const int32_t position = (pair.first_tile + pair.tile + t) * kDecodeTile;
      state.add_tile(p, ring + stage * Sizes::kStageBytes, position, low, pair.seq_len);
      free_stage = stage;
      stage = stage + 1 == Sizes::kStages ? 0 : stage + 1;
    }
    state.put(exchange);
    PairWalk next = pair;
    const bool more = next.next(p);
    if (more) {
      state.load_q(p, next.row, next.head);
    }
    __syncthreads();
    finish_pair<kDim, kHeadTiles>(p, share, pair, exchange);
    if (!more) {
      return;
    }
    __syncthreads();
    pair = next;
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
  shape.block = dim3(kDecodeThreads);
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
