// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/cuda/tensor_map.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/experts/expert_gate.cuh"
#include "kernels/experts/mxfp4_tiles.h"
#include "kernels/experts/sm90_expert_gemm.h"

#include <cstddef>
#include <cstdint>
#include <cuda_runtime.h>

// What the Hopper GEMMs of experts share: items of the work list, tiles of 64 rows and kInputs inputs of an expert's matrix in
// each of its formats, biases. A gated tile has groups of eight gate rows and their eight up rows.
namespace warprow::cuda {

// A tile of the work list.
struct ListTile {
  int expert;
  int place;
  int num_places;

  __device__ __forceinline__ ListTile(const ExpertGemmArgs& a, int tile) {
    const int4 entry = __ldcg(reinterpret_cast<const int4*>(a.tiles) + 1 + tile);
    expert = entry.x;
    place = entry.y;
    num_places = entry.z;
  }
};

// Part of the work: a tile of the list and a tile of the expert's rows.
struct ExpertItem : ListTile {
  int row_tile;

  __device__ ExpertItem(const ExpertGemmArgs& a, int row_tiles, int index)
      : ExpertItem(a, row_tiles, index, index / row_tiles) {}

 private:
  __device__ ExpertItem(const ExpertGemmArgs& a, int row_tiles, int index, int tile)
      : ListTile(a, tile), row_tile(index - tile * row_tiles) {}
};

__device__ __forceinline__ int expert_items(const ExpertGemmArgs& a, int row_tiles) {
  return __ldcg(a.tiles) * row_tiles;
}

// Biases of a lane's two rows of a warp's 16: lane / 4 and the one 8 below, which is a gate's up row.
class ExpertBias {
 public:
  // row: the warp's first, of the tiles' rows.
  __device__ ExpertBias(const ExpertGemmArgs& a, bool gates, int expert, int row, int lane)
      : limit_(a.gate_limit) {
    const int outputs = gates ? a.n / 2 : a.n;
    const int output = (gates ? row / 2 : row) + lane / 4;
    const float* bias = a.bias + int64_t{expert} * a.n;
    const int below = output + (gates ? outputs : 8);
    upper_ = a.bias != nullptr && output < outputs ? __ldg(bias + output) : 0.0F;
    lower_ = a.bias != nullptr && output < outputs && below < a.n ? __ldg(bias + below) : 0.0F;
  }
  [[nodiscard]] __device__ float upper(float v) const { return __fadd_rn(v, upper_); }
  [[nodiscard]] __device__ float lower(float v) const { return __fadd_rn(v, lower_); }
  template <GateForm kForm>
  [[nodiscard]] __device__ float gate(float v, float up) const {
    return expert_gate<kForm>(upper(v), lower(up), limit_);
  }

 private:
  float limit_;
  float upper_;
  float lower_;
};

// Four products of a lane, of eight places: row lane / 4 of a warp's 16 and places lane % 4 * 2, + 1; then the row 8 below.
// Transposed, a lane has place lane / 4 and rows lane % 4 * 2, + 1, which it stores at `to`. first: the warp's first output of
// `outputs`; is_place: whether there is such a place.
template <bool kGates, GateForm kForm>
__device__ __forceinline__ void store_products(
    const float* v, const ExpertBias& bias, Bf16* to, bool is_place, int first, int outputs) {
  if constexpr (kGates) {
    const uint32_t pair =
        transpose_matrix(pack_bf16(bias.gate<kForm>(v[0], v[2]), bias.gate<kForm>(v[1], v[3])));
    if (is_place && first < outputs) {
      *reinterpret_cast<uint32_t*>(to) = pair;
    }
  } else {
    const uint32_t upper = transpose_matrix(pack_bf16(bias.upper(v[0]), bias.upper(v[1])));
    const uint32_t lower = transpose_matrix(pack_bf16(bias.lower(v[2]), bias.lower(v[3])));
    if (is_place && first < outputs) {
      *reinterpret_cast<uint32_t*>(to) = upper;
    }
    if (is_place && first + 8 < outputs) {
      *reinterpret_cast<uint32_t*>(to + 8) = lower;
    }
  }
}

template <PackedKind kKind, ScaleForm kScales = ScaleForm::kF16>
struct ExpertW;

// Consumer warps have 16 rows each of those that a CTA has, in their order.
struct WarpsInOrder {
  template <bool kGates>
  __device__ __forceinline__ static int warp_of(int warp) {
    return warp;
  }
};

// Rows of bf16, by TMA.
template <>
struct ExpertW<PackedKind::kBF16> : WarpsInOrder {
  static constexpr bool kDequantises = false;
  static constexpr float kTimes = 1.0F;
  static constexpr bool kHasSmallTiles = false;
  static constexpr int kInputs = 64;  // of a tile
  static constexpr int kTileBytes = 64 * 128;
  static constexpr int kPending = 1;  // groups of wgmmas in flight when the next step begins

  // Bytes that are loaded for `count` tiles from `first` on: those of all tiles, since TMA accepts any coordinates.
  template <LinearEpilogue kEpilogue, int kTiles>
  __device__ static int loaded_bytes(const ExpertGemmArgs& /*a*/,
                                     int /*first*/,
                                     int count,
                                     int /*step*/) {
    static_assert(kTiles == 1);
    return count * kTileBytes;
  }

  template <LinearEpilogue kEpilogue>
  static CUtensorMap map(const ExpertGemmArgs& args, int groups) {
    const auto k = static_cast<uint64_t>(args.k);
    const auto n = static_cast<uint64_t>(args.n);
    const uint64_t rows = static_cast<uint64_t>(args.num_experts) * n;
    const auto box = static_cast<uint32_t>(groups);
    if constexpr (kEpilogue == LinearEpilogue::kSwiGlu) {
      // Inputs; eight rows; their gate and up half; groups of eight gate rows. From an expert's groups to the next's are
      // n / 8, half of which are up rows.
      return tensor_map<4>(args.w,
                           {k, 8, 2, (rows - n / 2) / 8},
                           {2 * k, n * k, 16 * k},
                           {64, 8, 2, box * 4},
                           CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
    } else {
      return tensor_map<2>(
          args.w, {k, rows}, {2 * k}, {64, box * 64}, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
    }
  }

  template <LinearEpilogue kEpilogue, int kGroups, int kTiles>
  __device__ static void load(const ExpertGemmArgs& a,
                              const CUtensorMap& map,
                              uint32_t to,
                              uint32_t barrier,
                              int expert,
                              int tile,
                              int step,
                              uint64_t policy) {
    if constexpr (kEpilogue == LinearEpilogue::kSwiGlu) {
      tma_load_4d(to, map, barrier, step * 64, 0, 0, expert * (a.n / 8) + tile * 4, policy);
    } else {
      tma_load_2d(to, map, barrier, step * 64, expert * a.n + tile * 64, policy);
    }
  }

  // Begins sum += w * x^T over a stage's inputs, for the rows of one of kGroups warpgroups. w: of all groups; kXBytes: of x of 64
  // inputs.
  template <bool kGates, int kGroups, int kTiles, int kXBytes, int kSums>
  __device__ __forceinline__ static void multiply(const ExpertGemmArgs& /*a*/,
                                                  float (&sum)[kSums],
                                                  uint32_t w,
                                                  int group,
                                                  uint32_t x,
                                                  int /*step*/,
                                                  int /*thread*/) {
    w += group * kTileBytes;
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      wgmma(sum, wgmma_operand(w + i * 32, 1024, 16), wgmma_operand(x + i * 32, 1024, 16));
    }
    wgmma_commit();
  }
};

// A lane's 32 numbers of a tile of MXFP4, and their scales.
class Mxfp4Numbers {
 public:
  __device__ __forceinline__ Mxfp4Numbers(const uint4& words, uint32_t scales)
      : words_{words.x, words.y, words.z, words.w} {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      factors_[i] = __byte_perm(scales, 0, 0x4040 + i * 0x0101) << 7;
    }
  }
  // w: the tile in shared memory. thread: of 128.
  __device__ __forceinline__ static Mxfp4Numbers load(uint32_t w, int thread) {
    return {load_shared_four(w + thread * 16), load_shared(w + kMxfp4NumberBytes + thread / 4 * 4)};
  }

  // Those of inputs 16 i to 16 i + 15 as pairs of bf16, exactly: the four registers of operand A.
  __device__ __forceinline__ void dequantise(int i, uint32_t (&d)[4]) const {
    // As bf16: sign, and exponent and fraction of 2^-126 times the number.
    constexpr uint32_t kNumbers = kMxfp4Number * 0x10001;
    const uint32_t w = words_[i];
    const uint32_t rest = mxfp4_rest(words_[i / 2 * 2], words_[i / 2 * 2 + 1]);
    const uint32_t pairs[4] = {
        w & kNumbers,
        w << 4 & kNumbers,
        __funnelshift_r(w, w, 6) & kNumbers,
        (i % 2 == 0 ? rest << 6 : __funnelshift_r(rest, rest, 4)) & kNumbers,
    };
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      asm("mul.rn.bf16x2 %0, %1, %2;"
          : "=r"(d[j])
          : "r"(pairs[j]), "r"(factors_[j % 2 * 2 + i / 2]));
    }
  }

 private:
  uint32_t words_[4];
  // Of the upper row's two groups of 32 inputs, then of the lower's: 2^126 times the scale.
  uint32_t factors_[4];
};

// Tiles of MXFP4 (mxfp4_tiles.h), dequantised into registers. Those of a stage lie together.
template <>
struct ExpertW<PackedKind::kMxfp4> : WarpsInOrder {
  static constexpr bool kDequantises = true;
  static constexpr float kTimes = 1.0F;
  static constexpr bool kHasSmallTiles = true;
  static constexpr int kInputs = kMxfp4TileCols;
  static constexpr int kTileBytes = kMxfp4TileBytes;
  // ptxas serialises wgmmas if registers with operands of later ones are written while they run. So each step ends before
  // the next one dequantises; other warpgroups keep the tensor cores busy.
  static constexpr int kPending = 0;

  // How many of `count` tiles of 64 rows, from `first` on, the matrix has.
  __device__ static int num_parts(const ExpertGemmArgs& a, int first, int count) {
    return max(0, min(count, (a.n + 63) / 64 - first));
  }
  // Tiles of 64 inputs in a stage.
  template <int kTiles>
  __device__ static int num_tiles(const ExpertGemmArgs& a, int step) {
    return min(kTiles, (a.k + 63) / 64 - step * kTiles);
  }
  template <LinearEpilogue kEpilogue, int kTiles>
  __device__ static int loaded_bytes(const ExpertGemmArgs& a, int first, int count, int step) {
    return num_parts(a, first, count) * num_tiles<kTiles>(a, step) * kTileBytes;
  }

  template <LinearEpilogue kEpilogue>
  static CUtensorMap map(const ExpertGemmArgs& /*args*/, int /*groups*/) {
    return {};
  }

  template <LinearEpilogue kEpilogue, int kGroups, int kTiles>
  __device__ static void load(const ExpertGemmArgs& a,
                              const CUtensorMap& /*map*/,
                              uint32_t to,
                              uint32_t barrier,
                              int expert,
                              int tile,
                              int step,
                              uint64_t policy) {
    const int across = (a.k + 63) / 64;
    const int count = num_parts(a, tile, kGroups);
    for (int i = 0; i < count; ++i) {
      const int64_t rows = int64_t{expert} * ((a.n + 63) / 64) + tile + i;
      bulk_load(to + i * kTiles * kTileBytes,
                static_cast<const std::byte*>(a.w) + (rows * across + step * kTiles) * kTileBytes,
                num_tiles<kTiles>(a, step) * kTileBytes,
                barrier,
                policy);
    }
  }

  template <bool kGates, int kGroups, int kTiles, int kXBytes, int kSums>
  __device__ __forceinline__ static void multiply(const ExpertGemmArgs& a,
                                                  float (&sum)[kSums],
                                                  uint32_t w,
                                                  int group,
                                                  uint32_t x,
                                                  int step,
                                                  int thread) {
    w += group * (kTiles * kTileBytes);
    const uint64_t of_x = wgmma_operand(x, 1024, 16);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if (tile > 0) {
        if (tile >= num_tiles<kTiles>(a, step)) {
          break;
        }
        wgmma_wait<0>();
      }
      const Mxfp4Numbers numbers = Mxfp4Numbers::load(w + tile * kTileBytes, thread);
      uint32_t d[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        numbers.dequantise(i, d[i]);
      }
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        wgmma(sum, d[i], further_operand(of_x, tile * kXBytes + i * 32));
      }
      wgmma_commit();
    }
  }
};

}  // namespace warprow::cuda
