// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/attention/native/part_state.cuh"
#include "kernels/cuda/ptx.cuh"

// The parts of a chunk that several pieces compute, in scratch, and a piece's parts in order (part_decode.cuh, warp_decode.cuh).
namespace warprow::cuda {
namespace {

// Counts a warp's parts of a chunk as written. Returns true if they were the last.
__device__ bool arrive(const NativeParams& p, const Piece& piece, int32_t parts) {
  const int64_t chunk = int64_t{piece.item.chunk} * p.num_kv_heads + piece.head;
  int32_t* count = p.scratch.arrivals + chunk * kDecodeWarps + static_cast<int>(threadIdx.x) / 32;
  int32_t last = 0;
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    last = add_acq_rel(count, parts) + parts == piece.item.num_parts ? 1 : 0;
    if (last != 0) {
      *count = 0;
    }
  }
  __syncwarp();
  return __shfl_sync(0xffffffffU, last, 0) != 0;
}

// A warp's share of a part in scratch: for two pairs the outputs as float4 [kDimTiles, 8 lanes], then maxima and sums.
template <typename State>
struct StoredPart {
  static constexpr int kDim = State::kDim;
  static constexpr int kHeadTiles = State::kNumHeadTiles;
  using Sums = typename State::Sums;
  static constexpr int kVectors = State::kDimTiles * 8 + 1;  // of two pairs
  static_assert(State::kNumWarps * kVectors * 4 <= partial_floats(2, kDim));

  static __device__ float4* place(const NativeParams& p, int32_t part, int32_t kv_head) {
    const int64_t slot = int64_t{part} * p.num_kv_heads + kv_head;
    const int warp = threadIdx.x / 32;
    return reinterpret_cast<float4*>(p.scratch.partials +
                                     slot * partial_floats(p.decode_pairs, kDim)) +
           warp * ((p.decode_pairs + 1) / 2) * kVectors;
  }
  static __device__ void store(float4* to, const Sums& sums, int pairs) {
    const int g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
      const int two = h * 4 + threadIdx.x % 4;
      if (two * 2 < pairs) {
        float4* at = to + two * kVectors;
#pragma unroll
        for (int d = 0; d < State::kDimTiles; ++d) {
          const float(&o)[4] = sums.o[h][d];
          at[d * 8 + g] = float4{o[0], o[1], o[2], o[3]};
        }
        if (g == 0) {
          at[kVectors - 1] = float4{sums.max[h][0], sums.max[h][1], sums.sum[h][0], sums.sum[h][1]};
        }
      }
    }
  }
  static __device__ void load(Sums& sums, const float4* from, int pairs) {
    const int g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
      const int two = h * 4 + threadIdx.x % 4;
      const float4* at = from + (two * 2 < pairs ? two : 0) * kVectors;
#pragma unroll
      for (int d = 0; d < State::kDimTiles; ++d) {
        const float4 o = __ldcg(at + d * 8 + g);
        sums.o[h][d][0] = o.x;
        sums.o[h][d][1] = o.y;
        sums.o[h][d][2] = o.z;
        sums.o[h][d][3] = o.w;
      }
      const float4 ends = __ldcg(at + kVectors - 1);
      sums.max[h][0] = ends.x;
      sums.max[h][1] = ends.y;
      sums.sum[h][0] = ends.z;
      sums.sum[h][1] = ends.w;
    }
  }
};

// Up to kCount stored parts of a chunk, whose loads do not wait for each other. A part without sums changes nothing.
template <int kCount, typename State>
__device__ void merge_some(
    State& state, const NativeParams& p, const Piece& piece, float scale, int32_t first) {
  const DecodeItem& item = piece.item;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int32_t part = min(first + i, item.num_parts - 1);
    StoredPart<State>::load(state.part,
                            StoredPart<State>::place(p, item.first_part + part, piece.head),
                            item.num_toks * p.group);
    if (first + i >= item.num_parts) {
      state.part.clear();
    }
    state.total.merge(state.part, scale);
  }
}
template <typename State>
__device__ void merge_stored(State& state, const NativeParams& p, const Piece& piece, float scale) {
  constexpr int kMost = State::kNumHeadTiles > 1 ? 2 : State::kNumWarps == 1 ? 4 : 8;
  const int32_t parts = piece.item.num_parts;
  state.total.clear();
  int32_t first = 0;
  for (; parts - first > kMost / 2; first += kMost) {
    merge_some<kMost>(state, p, piece, scale, first);
  }
  if (first < parts) {
    merge_some<kMost / 2>(state, p, piece, scale, first);
  }
}

// Computes a piece's parts, and merges or stores them. Returns their number. add_run(position, tiles) adds up to kTiles tiles
// to the part.
template <int kTiles, typename State, typename AddRun>
__device__ int32_t
add_parts(State& state, const NativeParams& p, const Piece& piece, float scale, AddRun&& add_run) {
  const DecodeItem& item = piece.item;
  const int32_t end = (item.tile + item.num_tiles) * kDecodeTile;
  int32_t parts = 0;
  state.total.clear();
#pragma unroll 1
  for (int32_t key = item.tile * kDecodeTile; key < end; ++parts) {
    const int32_t border = min(part_end(key), end);
    state.start_part();
#pragma unroll 1
    while (key < border) {
      const int32_t tiles = min(kTiles, (border - key + kPartTile - 1) / kPartTile);
      add_run(key, tiles);
      key += tiles * kPartTile;
    }
    state.end_part();
    if (item.num_parts > 1) {
      StoredPart<State>::store(
          StoredPart<State>::place(p, item.first_part + item.part + parts, piece.head),
          state.part,
          item.num_toks * p.group);
    } else {
      state.total.merge(state.part, scale);
    }
  }
  return parts;
}

}  // namespace
}  // namespace warprow::cuda
