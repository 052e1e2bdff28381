// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/attention/native/decode_state.cuh"
#include "kernels/attention/native/order.cuh"
#include "kernels/attention/native/part_ring.cuh"

#include <cuda_bf16.h>

// What a warp of the batch-invariant decode kernels computes (part_decode.cuh, warp_decode.cuh).
namespace warprow::cuda {
namespace {

// What the compute warps exchange about a run of tiles, in shared memory.
template <int kHeadTiles>
struct PartExchange {
  static constexpr int kPairs = 8 * kHeadTiles;
  using Max = float[kTileWarps][kPairs];     // of the scores that a warp computed of a tile
  using Weights = uint4[kHeadTiles][2][32];  // of a tile: two steps of 16 keys, by lane
  Weights weights[kRunTiles];
  Max max[2][kRunTiles];  // double-buffered, since a warp may be a run ahead
};

// The state of the current part and that of the parts before it, for up to 8 * kHeadTiles (query, head) pairs. A warp
// computes the scores and weights of shares of a tile. It multiplies a tile's weights with a kWarps-th of the head's elements.
// Outputs and maxima: lane (g, t) has pairs 2t and 2t + 1, and of every 16 elements g and g + 8, with an 8-bit cache 2g and
// 2g + 1. Sums: lane (g, t) has pair g.
template <int kHeadDim, int kHeadTiles, KvFormat kFormat, int kWarps>
struct PartState {
  static constexpr int kDim = kHeadDim;
  static constexpr int kNumHeadTiles = kHeadTiles;
  static constexpr int kNumWarps = kWarps;
  static constexpr bool kF8 = kFormat != KvFormat::kBF16;
  using Two = Operands<kFormat>;
  using Sizes = PartSizes<kDim, kHeadTiles, kFormat>;
  static constexpr int kSteps = kDim / 16;
  static constexpr int kSlice = kDim / kWarps;
  static constexpr int kDimTiles = kSlice / 16;
  static constexpr int kMmaSteps = kPartTile / 16;  // over the keys of a tile
  static constexpr int kShareSteps = 2;             // over a share of them
  using Exchange = PartExchange<kHeadTiles>;
  using Scores = float[kHeadTiles][kShareSteps][4];

  struct Sums {
    float o[kHeadTiles][kDimTiles][4];
    float max[kHeadTiles][2];
    float sum[kHeadTiles][2];

    __device__ void clear() {
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h) {
        max[h][0] = max[h][1] = kNoMax;
        sum[h][0] = sum[h][1] = 0.0F;
#pragma unroll
        for (int d = 0; d < kDimTiles; ++d) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            o[h][d][i] = 0.0F;
          }
        }
      }
    }
    __device__ void merge(const Sums& part, float scale) {
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const PartFactors by =
              merge_part(max[h][i], sum[h][i], part.max[h][i], part.sum[h][i], scale);
#pragma unroll
          for (int d = 0; d < kDimTiles; ++d) {
            o[h][d][i] = merged(o[h][d][i], part.o[h][d][i], by);
            o[h][d][i + 2] = merged(o[h][d][i + 2], part.o[h][d][i + 2], by);
          }
        }
      }
    }
  };

  uint32_t q[kHeadTiles][kSteps][2];
  Sums part;
  float lane_sum[kHeadTiles];  // of the part: this lane's keys of pair g
  Sums total;
  uint32_t weights[kHeadTiles][kMmaSteps][2];

  // The first of the lane's two pairs.
  [[nodiscard]] static __device__ int pair_of_lane(int h) {
    return h * 8 + static_cast<int>(threadIdx.x) % 4 * 2;
  }
  // The maxima of a tile for the lane's pairs.
  [[nodiscard]] static __device__ float2 max_of_tile(const typename Exchange::Max& tops, int h) {
    float2 max = *reinterpret_cast<const float2*>(tops[0] + pair_of_lane(h));
#pragma unroll
    for (int share = 1; share < kTileWarps; ++share) {
      const float2 other = *reinterpret_cast<const float2*>(tops[share] + pair_of_lane(h));
      max = {fmaxf(max.x, other.x), fmaxf(max.y, other.y)};
    }
    return max;
  }
  [[nodiscard]] static __device__ int slice() {
    return kWarps == 1 ? 0 : static_cast<int>(threadIdx.x / 32) * kSlice;
  }

  __device__ void start_part() {
    part.clear();
#pragma unroll
    for (float& sum : lane_sum) {
      sum = 0.0F;
    }
  }
  __device__ void end_part() {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
      const float sum = sum_of_lanes(lane_sum[h]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        part.sum[h][i] = __shfl_sync(0xffffffffU, sum, (lane % 4 * 2 + i) * 4);
      }
    }
  }

  // The scores of a share of a tile: lane (g, t) gets of every 16 keys g and g + 8, for pairs 2t and 2t + 1.
  __device__ void score(Scores& s, uint32_t keys, int share) const {
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
      for (int m = 0; m < kShareSteps; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          s[h][m][i] = 0.0F;
        }
      }
    }
    keys += share * kShareSteps * Sizes::kBoxBytes;
    if constexpr (kF8) {
      score_f8(s, keys);
    } else {
      score_bf16(s, keys);
    }
  }
  __device__ void score_bf16(Scores& s, uint32_t keys) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint32_t at = Sizes::place(lane % 16, 2 * step + lane / 16);
#pragma unroll
      for (int m = 0; m < kShareSteps; ++m) {
        uint32_t a[4];
        load_matrices(a, keys + m * Sizes::kBoxBytes + at);
#pragma unroll
        for (int h = 0; h < kHeadTiles; ++h) {
          mma_bf16(s[h][m], a, q[h][step][0], q[h][step][1]);
        }
      }
    }
  }
  // The same of 8-bit keys: a load has 32 elements of 16 keys, of which a lane gets four adjacent ones of two keys, twice.
  __device__ void score_f8(Scores& s, uint32_t keys) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < kSteps; step += 2) {
      const uint32_t at = Sizes::place(lane % 16, step + lane / 16);
#pragma unroll
      for (int m = 0; m < kShareSteps; ++m) {
        uint32_t four[4];
        load_matrices(four, keys + m * Sizes::kBoxBytes + at);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t a[4] = {Two::low_pair(four[2 * i]),
                                 Two::low_pair(four[2 * i + 1]),
                                 Two::high_pair(four[2 * i]),
                                 Two::high_pair(four[2 * i + 1])};
#pragma unroll
          for (int h = 0; h < kHeadTiles; ++h) {
            Two::mma(s[h][m], a, q[h][step + i][0], q[h][step + i][1]);
          }
        }
      }
    }
  }

  // Rescales the part's sums to a higher maximum.
  __device__ void shrink(const float (&by)[2], int h) {
    const int lane = threadIdx.x % 32;
    const float even = __shfl_sync(0xffffffffU, by[0], lane / 8);
    const float odd = __shfl_sync(0xffffffffU, by[1], lane / 8);
    lane_sum[h] = __fmul_rn(lane_sum[h], lane / 4 % 2 == 0 ? even : odd);
#pragma unroll
    for (int d = 0; d < kDimTiles; ++d) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        part.o[h][d][i] = __fmul_rn(part.o[h][d][i], by[i % 2]);
      }
    }
  }

  // Masks the scores of a share of the tile that begins at `position`.
  __device__ void mask(Scores& s,
                       const NativeParams& p,
                       const DecodeItem& item,
                       int32_t position,
                       int share,
                       const HeadScales& scales) const {
    const bool whole = (p.window == 0 || position >= item.seq_len - p.window) &&
                       position + kPartTile <= item.seq_len - (item.num_toks - 1);
    if (p.soft_cap > 0.0F) {
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
        for (int m = 0; m < kShareSteps; ++m) {
#pragma unroll
          for (float& v : s[h][m]) {
            v = to_log2_score(v, scales.exponent, scales.score, p.soft_cap);
          }
        }
      }
    }
    if (whole) {
      return;
    }
    const int32_t first =
        position + share * kShareSteps * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int32_t query = query_of(p, item, pair_of_lane(h) + i);
        const int32_t high = item.seq_len - (item.num_toks - 1 - query);
        const int32_t low = p.window > 0 ? high - p.window : 0;
#pragma unroll
        for (int m = 0; m < kShareSteps; ++m) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int32_t key = first + m * 16 + half * 8;
            float& score = s[h][m][half * 2 + i];
            score = key >= low && key < high ? score : -INFINITY;
          }
        }
      }
    }
  }

  // Raises the maxima of the lane's two pairs to its scores.
  __device__ static void raise(float (&top)[2], const Scores& s, int h) {
#pragma unroll
    for (int m = 0; m < kShareSteps; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        top[i % 2] = fmaxf(top[i % 2], s[h][m][i]);
      }
    }
  }
  // To the maxima of all lanes that have these pairs.
  __device__ static void raise_to_lanes(float (&top)[2]) {
#pragma unroll
    for (int d = 4; d < 32; d *= 2) {
      top[0] = fmaxf(top[0], __shfl_xor_sync(0xffffffffU, top[0], d));
      top[1] = fmaxf(top[1], __shfl_xor_sync(0xffffffffU, top[1], d));
    }
  }

  // The weights of a share under base, which is the maximum times scale: operands of two steps of 16 keys.
  __device__ static void make_weights(
      uint32_t (&to)[kShareSteps][2], const Scores& s, int h, float scale, const float (&base)[2]) {
#pragma unroll
    for (int m = 0; m < kShareSteps; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float even = weight_of(s[h][m][2 * i], scale, base[0]);
        const float odd = weight_of(s[h][m][2 * i + 1], scale, base[1]);
        to[m][i] = transpose_matrix(Two::pack(even, odd));
      }
    }
  }

  // Rescales the part's sums to the maximum with a tile whose maxima are `top`.
  __device__ void rescale(float2 top, int h, float scale) {
    float* max = part.max[h];
    if (__any_sync(0xffffffffU, top.x > max[0] || top.y > max[1])) {
      const float higher[2] = {fmaxf(max[0], top.x), fmaxf(max[1], top.y)};
      float by[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        by[i] = shrink_factor(max[i], higher[i], scale);
        max[i] = higher[i];
      }
      shrink(by, h);
    }
  }
  // Adds the tile's weights to the lane's sum.
  __device__ void sum_weights(int h) {
#pragma unroll
    for (int m = 0; m < kMmaSteps; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        lane_sum[h] = add_weights<kFormat>(lane_sum[h], weights[h][m][i]);
      }
    }
  }

  // Writes the maxima of a share's scores.
  __device__ static void leave_max(const Scores& s, float (&to)[Exchange::kPairs]) {
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
      float top[2] = {kNoMax, kNoMax};
      raise(top, s, h);
      raise_to_lanes(top);
      if (threadIdx.x % 32 < 4) {
        *reinterpret_cast<float2*>(to + pair_of_lane(h)) = {top[0], top[1]};
      }
    }
  }

  // Writes the weights of a share of tile `tile` under the maximum of the part up to the tile.
  __device__ void leave_weights(const Scores& s,
                                const typename Exchange::Max (&tops)[kRunTiles],
                                int tile,
                                int share,
                                float scale,
                                typename Exchange::Weights& to) const {
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
      float2 max = {part.max[h][0], part.max[h][1]};
#pragma unroll
      for (int t = 0; t < kRunTiles; ++t) {
        if (t <= tile) {
          const float2 top = max_of_tile(tops[t], h);
          max = {fmaxf(max.x, top.x), fmaxf(max.y, top.y)};
        }
      }
      uint32_t two[kShareSteps][2];
      make_weights(two, s, h, scale, {__fmul_rn(max.x, scale), __fmul_rn(max.y, scale)});
      to[h][share][threadIdx.x % 32] = {two[0][0], two[0][1], two[1][0], two[1][1]};
    }
  }

  // Loads a tile's weights from shared memory, and rescales the part's sums to their maximum.
  __device__ void take_weights(const typename Exchange::Weights& from,
                               const typename Exchange::Max& tops,
                               float scale) {
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
      for (int share = 0; share < kTileWarps; ++share) {
        const uint4 two = from[h][share][threadIdx.x % 32];
        weights[h][2 * share][0] = two.x;
        weights[h][2 * share][1] = two.y;
        weights[h][2 * share + 1][0] = two.z;
        weights[h][2 * share + 1][1] = two.w;
      }
      rescale(max_of_tile(tops, h), h, scale);
      sum_weights(h);
    }
  }

  // Adds the products of weights with the values of kCount times 16 keys from the tile's kFirst-th on, of which the first `valid`
  // are the row's.
  template <int kFirst = 0, int kCount = kMmaSteps>
  __device__ void add_values(uint32_t values, int32_t valid) {
    // Without branches between them, the loads of a tile need not wait for each other's products.
    if (valid >= kCount * 16) {
      add_tile<true, kFirst, kCount>(values, valid);
    } else {
      add_tile<false, kFirst, kCount>(values, valid);
    }
  }
  // kWhole: all of the values are the row's.
  template <bool kWhole, int kFirst, int kCount>
  __device__ void add_tile(uint32_t values, int32_t valid) {
    if constexpr (kF8) {
      add_values_f8<kWhole, kFirst, kCount>(values, valid);
    } else {
      add_values_bf16<kWhole, kFirst, kCount>(values, valid);
    }
  }
  template <bool kWhole, int kFirst, int kCount>
  __device__ void add_values_bf16(uint32_t values, int32_t valid) {
    const int lane = threadIdx.x % 32;
    const int token = lane % 8 + lane / 16 * 8;
#pragma unroll
    for (int m = 0; m < kCount; ++m) {
#pragma unroll
      for (int d = 0; d < kDimTiles; ++d) {
        const int chunk = slice() / 8 + 2 * d + lane / 8 % 2;
        uint32_t v[4];
        load_matrices_transposed(v, values + m * Sizes::kBoxBytes + Sizes::place(token, chunk));
        if constexpr (!kWhole) {
          clear_values(v, valid - m * 16);
        }
#pragma unroll
        for (int h = 0; h < kHeadTiles; ++h) {
          mma_bf16(part.o[h][d], v, weights[h][kFirst + m][0], weights[h][kFirst + m][1]);
        }
      }
    }
  }

  // The same of 8-bit values: a load has 16 elements of 32 tokens, or 32 of 16 tokens. A lane gets two adjacent elements of
  // two adjacent tokens.
  template <bool kWhole, int kFirst, int kCount>
  __device__ void add_values_f8(uint32_t values, int32_t valid) {
    constexpr int kTileSteps = kSlice == 16 ? 2 : 1;  // of tokens in a load
    constexpr int kLoadTiles = kSlice == 16 ? 1 : 2;  // of elements
    const int lane = threadIdx.x % 32;
    const int token = lane % (16 * kTileSteps);
#pragma unroll
    for (int m = 0; m < kCount; m += kTileSteps) {
#pragma unroll
      for (int d = 0; d < kDimTiles; d += kLoadTiles) {
        const int chunk = slice() / 16 + d + (kLoadTiles == 2 ? lane / 16 : 0);
        uint32_t four[4];
        load_matrices_transposed(
            four, values + (m + token / 16) * Sizes::kBoxBytes + Sizes::place(token % 16, chunk));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int step = m + (kTileSteps == 2 ? i : 0);
          const int tile = d + (kLoadTiles == 2 ? i : 0);
          uint32_t v[4];
          Two::split(four[2 * i], v[0], v[1]);
          Two::split(four[2 * i + 1], v[2], v[3]);
          if constexpr (!kWhole) {
            clear_values(v, valid - step * 16);
          }
#pragma unroll
          for (int h = 0; h < kHeadTiles; ++h) {
            Two::mma(
                part.o[h][tile], v, weights[h][kFirst + step][0], weights[h][kFirst + step][1]);
          }
        }
      }
    }
  }

  // Loads the queries of a piece.
  __device__ void load_q(const NativeParams& p, const Piece& piece) {
    if constexpr (kF8) {
      load_halves(p, piece);
    } else {
      load_queries<kDim, kHeadTiles>(q, p, piece);
    }
  }
  // The same from shared memory (put_queries).
  __device__ void take_queries(const NativeParams& p, const Piece& piece, const Bf16* from) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
      const int pair = h * 8 + lane / 4;
      const bool there = pair < piece.item.num_toks * p.group;
      const Bf16* mine = from + pair * kQueryPitch<kDim> + lane % 4 * 2;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        q[h][step][0] = there ? *reinterpret_cast<const uint32_t*>(mine + step * 16) : 0;
        q[h][step][1] = there ? *reinterpret_cast<const uint32_t*>(mine + step * 16 + 8) : 0;
      }
    }
  }
  // Loads the queries as halves: a lane gets four adjacent elements of every 16.
  __device__ void load_halves(const NativeParams& p, const Piece& piece) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
      const int pair = h * 8 + lane / 4;
      const int query = query_of(p, piece.item, pair);
      const auto* from = static_cast<const __nv_bfloat16*>(p.q) +
                         (piece.item.first_tok + query) * p.q_stride +
                         ((piece.head - query) * p.group + pair) * kDim + (lane % 4) * 4;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint2 two = {0, 0};
        if (pair < piece.item.num_toks * p.group) {
          two = *reinterpret_cast<const uint2*>(from + step * 16);
        }
        q[h][step][0] = Two::query(two.x);
        q[h][step][1] = Two::query(two.y);
      }
    }
  }

  // Writes the results of all parts.
  __device__ void write(const NativeParams& p, const Piece& piece, const HeadScales& scales) const {
    const int lane = threadIdx.x % 32;
    const int pairs = piece.item.num_toks * p.group;
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
      float inverse[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int pair = h * 8 + lane % 4 * 2 + i;
        const int query = query_of(p, piece.item, pair);
        const int32_t head = (piece.head - query) * p.group + pair;
        const Finish end = finish<kFormat>(
            total.max[h][i], total.sum[h][i], scales, pair < pairs ? p.sinks : nullptr, head);
        inverse[i] = end.inverse;
        if (p.lse != nullptr && threadIdx.x < 4 && pair < pairs) {
          p.lse[(piece.item.first_tok + query) * p.lse_stride + head] = end.lse;
        }
      }
      if constexpr (kF8) {
        write_pairs(p, piece, h, inverse);
      } else {
        write_rows(p, piece, h, inverse);
      }
    }
  }
  __device__ void write_rows(const NativeParams& p,
                             const Piece& piece,
                             int h,
                             const float (&inverse)[2]) const {
    const int lane = threadIdx.x % 32;
    const int pairs = piece.item.num_toks * p.group;
    const int pair = h * 8 + lane / 4;
    const int query = query_of(p, piece.item, pair);
    const int32_t head = (piece.head - query) * p.group + pair;
    auto* to = static_cast<__nv_bfloat16*>(p.out) + (piece.item.first_tok + query) * p.out_stride +
               head * kDim + slice() + lane % 4 * 2;
#pragma unroll
    for (int d = 0; d < kDimTiles; ++d) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t two =
            transpose_matrix(pack_bf16(finished(total.o[h][d][2 * i], inverse[0]),
                                       finished(total.o[h][d][2 * i + 1], inverse[1])));
        if (pair < pairs) {
          *reinterpret_cast<uint32_t*>(to + d * 16 + i * 8) = two;
        }
      }
    }
  }
  // With an 8-bit cache a lane has adjacent elements of its two pairs.
  __device__ void write_pairs(const NativeParams& p,
                              const Piece& piece,
                              int h,
                              const float (&inverse)[2]) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int pair = h * 8 + lane % 4 * 2 + i;
      if (pair >= piece.item.num_toks * p.group) {
        continue;
      }
      const int query = query_of(p, piece.item, pair);
      auto* to = static_cast<__nv_bfloat16*>(p.out) +
                 (piece.item.first_tok + query) * p.out_stride +
                 ((piece.head - query) * p.group + pair) * kDim + slice() + lane / 4 * 2;
#pragma unroll
      for (int d = 0; d < kDimTiles; ++d) {
        *reinterpret_cast<uint32_t*>(to + d * 16) = pack_bf16(
            finished(total.o[h][d][i], inverse[i]), finished(total.o[h][d][i + 2], inverse[i]));
      }
    }
  }
};

}  // namespace
}  // namespace warprow::cuda
