// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/attention/native/decode_tiles.cuh"
#include "kernels/attention/native/scores.cuh"
#include "kernels/cuda/ptx.cuh"

#include <cuda_bf16.h>

// The state of a decode warp's tiles, and the merging of such states (decode.cuh).
namespace warprow::cuda {
namespace {

// Loads the queries of a piece. Lane (g, t) holds elements 2t, 2t + 1, 2t + 8, 2t + 9 of every 16 of pair g.
template <int kDim, int kHeadTiles>
__device__ void load_queries(uint32_t (&q)[kHeadTiles][kDim / 16][2],
                             const NativeParams& p,
                             const Piece& piece) {
  const int lane = threadIdx.x % 32;
  const int pairs = piece.item.num_toks * p.group;
#pragma unroll
  for (int h = 0; h < kHeadTiles; ++h) {
    const int pair = h * 8 + lane / 4;
    const int query = pair / p.group;
    const auto* from = static_cast<const __nv_bfloat16*>(p.q) +
                       (piece.item.first_tok + query) * p.q_stride +
                       ((piece.head - query) * p.group + pair) * kDim + (lane % 4) * 2;
#pragma unroll
    for (int s = 0; s < kDim / 16; ++s) {
      q[h][s][0] = 0;
      q[h][s][1] = 0;
      if (pair < pairs) {
        q[h][s][0] = *reinterpret_cast<const uint32_t*>(from + s * 16);
        q[h][s][1] = *reinterpret_cast<const uint32_t*>(from + s * 16 + 8);
      }
    }
  }
}

// Masks the scores of tokens that a pair does not see. Lane (g, t) has tokens g and g + 8 from `position` on, for
// pairs 2t and 2t + 1 of head tile h.
__device__ __forceinline__ void mask_scores(
    const NativeParams& p, const DecodeItem& item, float (&s)[4], int h, int32_t position) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int query = query_of(p, item, h * 8 + lane % 4 * 2 + i);
    const int32_t high = item.seq_len - (item.num_toks - 1 - query);
    const int32_t low = p.window > 0 ? high - p.window : 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t token = position + lane / 4 + half * 8;
      float& score = s[half * 2 + i];
      score = token >= low && token < high ? score : -INFINITY;
    }
  }
}

// Zeroes values past the row's last token: they may be NaN, and 0 x NaN = NaN. Of 16 dims x 16 tokens lane (g, t) has
// tokens 2t, 2t + 1, 2t + 8 and 2t + 9; the first `valid` tokens are the row's.
__device__ __forceinline__ void clear_values(uint32_t (&values)[4], int32_t valid) {
  const int token = static_cast<int>(threadIdx.x % 4) * 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int at = token + i / 2 * 8;
    values[i] &= (at < valid ? 0xffffU : 0U) | (at + 1 < valid ? 0xffff0000U : 0U);
  }
}

// Online-softmax state of a warp over its tiles of a piece. For each (query, head) pair: the running maximum
// (as an exponent of two), the sum of weights (each lane those of its tokens) and the output, transposed.
template <int kDim, int kHeadTiles>
struct DecodeState {
  static constexpr int kSteps = kDim / 16;
  uint32_t q[kHeadTiles][kSteps][2];
  float o[kHeadTiles][kSteps][4];
  float max[kHeadTiles][2];
  float sum[kHeadTiles][2];

  __device__ void load_q(const NativeParams& p, const Piece& piece) {
    load_queries<kDim, kHeadTiles>(q, p, piece);
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

  // Scores of 16 tokens: lane (g, t) gets tokens g and g + 8 for pairs 2t and 2t + 1. Four independent sums,
  // because an mma waits for the previous one on the same accumulator.
  __device__ void score(float (&s)[kHeadTiles][4], uint32_t keys) const {
    using Sizes = DecodeSizes<kDim, kHeadTiles>;
    const int lane = threadIdx.x % 32;
    const int token = lane % 16;
    uint32_t a[kSteps][4];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      load_matrices(a[step], keys + Sizes::place(token, 2 * step + lane / 16));
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

  // Turns scores into weights under the new maximum, and rescales the output to that maximum.
  __device__ void online_softmax(float (&s)[4], int h) {
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

  // Adds one loaded tile: tokens position .. position + 15.
  __device__ void add_tile(const NativeParams& p,
                           const DecodeItem& item,
                           uint32_t stage,
                           int32_t position) {
    using Sizes = DecodeSizes<kDim, kHeadTiles>;
    const int lane = threadIdx.x % 32;
    float s[kHeadTiles][4];
    score(s, stage);
    uint32_t values[kSteps][4];  // the loads run while the softmax is computed
    const int value_token = lane % 8 + (lane / 16) * 8;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      load_matrices_transposed(
          values[step],
          stage + Sizes::kHalfBytes + Sizes::place(value_token, 2 * step + lane / 8 % 2));
    }
    uint32_t weights[kHeadTiles][2];
    const bool whole = (p.window == 0 || position >= item.seq_len - p.window) &&
                       position + kDecodeTile <= item.seq_len - (item.num_toks - 1);
    if (position + kDecodeTile > item.seq_len) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        clear_values(values[step], item.seq_len - position);
      }
    }
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[h][i] = to_log2_score(s[h][i], p.scale * kLog2E, p.scale, p.soft_cap);
      }
      if (!whole) {
        mask_scores(p, item, s[h], h, position);
      }
      online_softmax(s[h], h);
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

  // Writes this warp's result to the exchange in shared memory.
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

// Merges partial results: a thread has four elements of one pair.
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
      const NativeParams& p, const Piece& piece, int32_t pair, int32_t head_dim, int32_t first) {
    const int32_t query = pair / p.group;
    const int64_t tok = piece.item.first_tok + query;
    const int32_t head = (piece.head - query) * p.group + pair;
    if (p.sinks != nullptr) {
      add({0.0F, 0.0F, 0.0F, 0.0F}, p.sinks[head] * kLog2E, 1.0F);
    }
    const float inverse = sum > 0.0F ? 1.0F / sum : 0.0F;
    auto* to = static_cast<__nv_bfloat16*>(p.out) + tok * p.out_stride + head * head_dim + first;
    uint2 packed;
    packed.x = pack_bf16(o.x * inverse, o.y * inverse);
    packed.y = pack_bf16(o.z * inverse, o.w * inverse);
    *reinterpret_cast<uint2*>(to) = packed;
    if (p.lse != nullptr && first == 0) {
      p.lse[tok * p.lse_stride + head] = (max + log2f(sum)) * kLn2;
    }
  }
};

}  // namespace
}  // namespace warprow::cuda
