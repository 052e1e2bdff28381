// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/cuda/tensor_map.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/experts/expert_gate.cuh"
#include "kernels/experts/mxfp4_tiles.h"
#include "kernels/experts/sm90_expert_gemm.h"
#include "kernels/linear/quant/quant_numbers.cuh"
#include "kernels/linear/quant/quant_tiles.h"

#include <cstddef>
#include <cstdint>
#include <cuda_runtime.h>

// What the Hopper GEMMs of experts share: items of the work list, tiles of 64 rows and kInputs inputs of an expert's matrix in
// each of its formats, biases. A gated tile has groups of eight gate rows and their eight up rows.
namespace warprow::cuda {

// Part of the work: a tile of the list and a tile of the expert's rows.
struct ExpertItem {
  int expert;
  int place;
  int num_places;
  int row_tile;

  __device__ ExpertItem(const ExpertGemmArgs& a, int row_tiles, int index) {
    const int tile = index / row_tiles;
    const int4 entry = __ldcg(reinterpret_cast<const int4*>(a.tiles) + 1 + tile);
    expert = entry.x;
    place = entry.y;
    num_places = entry.z;
    row_tile = index - tile * row_tiles;
  }
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
  [[nodiscard]] __device__ float gate(float v, float up) const {
    return expert_gate(upper(v), lower(up), limit_);
  }

 private:
  float limit_;
  float upper_;
  float lower_;
};

template <PackedKind kKind>
struct ExpertW;

// Rows of bf16, by TMA.
template <>
struct ExpertW<PackedKind::kBF16> {
  static constexpr int kInputs = 64;  // of a tile
  static constexpr int kTileBytes = 64 * 128;
  static constexpr int kPending = 1;  // groups of wgmmas in flight behind the next step's

  // Of `count` tiles from `first` on, what is loaded: all, as TMA takes any coordinates.
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

  // Begins sum += w * x^T over a stage's inputs. kXBytes: of x of 64 inputs.
  template <bool kGates, int kTiles, int kXBytes, int kSums>
  __device__ __forceinline__ static void multiply(const ExpertGemmArgs& /*a*/,
                                                  float (&sum)[kSums],
                                                  uint32_t w,
                                                  uint32_t x,
                                                  int /*step*/,
                                                  int /*thread*/) {
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
struct ExpertW<PackedKind::kMxfp4> {
  static constexpr int kInputs = kMxfp4TileCols;
  static constexpr int kTileBytes = kMxfp4TileBytes;
  // ptxas runs wgmmas one by one where others' operands are written to registers meanwhile, so each step ends before
  // the next one dequantises. Other warpgroups keep the tensor cores busy.
  static constexpr int kPending = 0;

  // Of 64 rows.
  __device__ static int num_parts(const ExpertGemmArgs& a, int first, int count) {
    return max(0, min(count, (a.n + 63) / 64 - first));
  }
  // Of 64 inputs, in a stage.
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

  template <bool kGates, int kTiles, int kXBytes, int kSums>
  __device__ __forceinline__ static void multiply(
      const ExpertGemmArgs& a, float (&sum)[kSums], uint32_t w, uint32_t x, int step, int thread) {
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
        wgmma(sum, d[i], wgmma_operand(x + tile * kXBytes + i * 32, 1024, 16));
      }
      wgmma_commit();
    }
  }
};

// Which rows of a tile of 16 registers 0 and 2, or 1 and 3, of wgmma's operand A have in a lane: row lane / 4, or the one 8
// below. Their numbers as pairs of bf16, exact but for a power of two that scales make up for.
template <PackedKind kKind>
class QuantRow;

template <>
class QuantRow<PackedKind::kF8> {
 public:
  __device__ explicit QuantRow(bool below) : shift_(below ? 8 : 0) {}
  __device__ static uint32_t zero_of(uint32_t /*zero*/) { return 0; }
  // step: of the four, or two, of 16 inputs in a lane's words. half: inputs c and c + 1, or the ones 8 behind them.
  [[nodiscard]] __device__ uint32_t pair(const uint4& words,
                                         int step,
                                         int half,
                                         uint32_t /*zero*/) const {
    return QuantNumbers<PackedKind::kF8, false>::pair(word_of(words, step * 2 + half) << shift_);
  }

 private:
  int shift_;
};

template <>
class QuantRow<PackedKind::kQ8> {
 public:
  __device__ explicit QuantRow(bool below) : first_(below ? 0x7440 : 0x7441) {}
  __device__ static uint32_t zero_of(uint32_t zero) {
    return QuantNumbers<PackedKind::kQ8, false>::zero_of(zero);
  }
  [[nodiscard]] __device__ uint32_t pair(const uint4& words,
                                         int step,
                                         int half,
                                         uint32_t zero) const {
    const uint32_t word = word_of(words, step * 2 + half);
    const float less = __uint_as_float(zero);
    const float first = __uint_as_float(__byte_perm(word, 0x4b000000U, first_));
    const float second = __uint_as_float(__byte_perm(word, 0x4b000000U, first_ + 2));
    return pack_bf16(__fsub_rn(first, less), __fsub_rn(second, less));
  }

 private:
  uint32_t first_;
};

template <>
class QuantRow<PackedKind::kQ4> {
 public:
  __device__ explicit QuantRow(bool below) : shift_(below ? 4 : 0) {}
  __device__ static uint32_t zero_of(uint32_t zero) {
    return QuantNumbers<PackedKind::kQ4, false>::zero_of(zero);
  }
  [[nodiscard]] __device__ uint32_t pair(const uint4& words,
                                         int step,
                                         int half,
                                         uint32_t zero) const {
    const uint32_t word = word_of(words, step) >> (shift_ + 8 * half);
    return sub_bf16x2((word & 0x000f000fU) | 0x43004300U, zero);
  }

 private:
  int shift_;
};

// A lane's two rows in tiles of linear operations (quant_tiles.h). kGates: a gate row and its up row, row lane / 4 of their
// tiles, or, with `below`, the one 8 below. Else both rows of one tile.
template <PackedKind kKind, bool kGates>
class QuantRows {
 public:
  // first, second: tiles in shared memory; second: the up rows'.
  __device__ __forceinline__
  QuantRows(const ExpertGemmArgs& a, uint32_t first, uint32_t second, bool below, int lane)
      : group_(kKind == PackedKind::kF8 ? 128 : a.group),
        zero_point_(a.zero_point),
        has_zeros_(kKind != PackedKind::kF8 && a.has_zero_points),
        numbers_{first + lane * 16, second + lane * 16},
        scales_at_{first + quant_number_bytes(kKind) + (lane / 4 + (kGates && below ? 8 : 0)) * 4,
                   (kGates ? second : first) + quant_number_bytes(kKind) +
                       (lane / 4 + (!kGates || below ? 8 : 0)) * 4},
        rows_{QuantRow<kKind>(kGates && below), QuantRow<kKind>(!kGates || below)} {}

  // Inputs 32 i to 32 i + 31 as quant_weight: two operands of 16 inputs. In ascending order of i.
  __device__ __forceinline__ void dequantise(int i, uint32_t (&d)[2][4]) {
    if (i * 32 % group_ == 0) {
      read_scales(i * 32 / group_);
    }
    constexpr int kSteps = QuantNumbers<kKind, false>::kStepsOfLoad;
    if (i * 2 % kSteps == 0) {
      words_[0] = load_shared_four(numbers_[0] + i * 2 / kSteps * 512);
      words_[1] = kGates ? load_shared_four(numbers_[1] + i * 2 / kSteps * 512) : words_[0];
    }
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = j % 2;
        d[step][j] = scales_[row].times(
            rows_[row].pair(words_[row], (i * 2 + step) % kSteps, j / 2, scales_[row].zero));
      }
    }
  }

 private:
  __device__ __forceinline__ void read_scales(int group) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const uint32_t at = scales_at_[row] + group * kQuantTileRows * 4;
      scales_[row].set_scale(load_shared(at));
      if constexpr (kKind != PackedKind::kF8) {
        scales_[row].zero = QuantRow<kKind>::zero_of(
            has_zeros_ ? load_shared_byte(zeros_at(row) + group * kQuantTileRows) : zero_point_);
      }
    }
  }
  // Behind all scales of the tile.
  [[nodiscard]] __device__ uint32_t zeros_at(int row) const {
    const uint32_t numbers = numbers_[kGates ? row : 0] - threadIdx.x % 32 * 16;
    const uint32_t scales = numbers + quant_number_bytes(kKind);
    return scales + kQuantTileCols / group_ * kQuantTileRows * 4 + (scales_at_[row] - scales) / 4;
  }

  int group_;
  uint32_t zero_point_;
  bool has_zeros_;
  uint32_t numbers_[2];
  uint32_t scales_at_[2];
  QuantRow<kKind> rows_[2];
  QuantScale scales_[2];
  uint4 words_[2];
};

// Tiles of linear operations, four of 16 rows each, dequantised into registers. A gated tile has two of gate rows and two of
// their up rows.
template <PackedKind kKind>
struct ExpertTiles {
  static constexpr int kInputs = kQuantTileCols;
  // Room for 16 rows: with F8 one group, else up to four with zero points.
  static constexpr int kPartBytes =
      quant_number_bytes(kKind) + kQuantTileRows * (kKind == PackedKind::kF8 ? 4 : 4 * 5);
  static constexpr int kTileBytes = 4 * kPartBytes;
  static constexpr int kPending = 0;  // as MXFP4

  // Part `part` of 64 rows: which 16 rows of an expert's matrix. -1: behind its end.
  template <LinearEpilogue kEpilogue>
  __device__ static int rows_of(int n, int tile, int part) {
    if constexpr (kEpilogue == LinearEpilogue::kSwiGlu) {
      const int half = n / (2 * kQuantTileRows);
      const int at = tile * 2 + part % 2;
      return at < half ? part / 2 * half + at : -1;
    } else {
      const int at = tile * 4 + part;
      return at < n / kQuantTileRows ? at : -1;
    }
  }
  template <LinearEpilogue kEpilogue, int kTiles>
  __device__ static int loaded_bytes(const ExpertGemmArgs& a, int first, int count, int /*step*/) {
    static_assert(kTiles == 1);
    constexpr bool kGates = kEpilogue == LinearEpilogue::kSwiGlu;
    constexpr int kOfTile = kGates ? 2 : 4;  // each of gate rows has one of up rows
    const int all = (kGates ? a.n / 2 : a.n) / kQuantTileRows;
    return max(0, min(count * kOfTile, all - first * kOfTile)) * (kGates ? 2 : 1) * a.tile_bytes;
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
    const int steps = (a.k + kInputs - 1) / kInputs;
    const int64_t first = int64_t{expert} * (a.n / kQuantTileRows);
#pragma unroll
    for (int i = 0; i < kGroups * 4; ++i) {
      const int rows = rows_of<kEpilogue>(a.n, tile + i / 4, i % 4);
      if (rows >= 0) {
        bulk_load(
            to + i * kPartBytes,
            static_cast<const std::byte*>(a.w) + ((first + rows) * steps + step) * a.tile_bytes,
            a.tile_bytes,
            barrier,
            policy);
      }
    }
  }

  template <bool kGates, int kTiles, int kXBytes, int kSums>
  __device__ __forceinline__ static void multiply(const ExpertGemmArgs& a,
                                                  float (&sum)[kSums],
                                                  uint32_t w,
                                                  uint32_t x,
                                                  int /*step*/,
                                                  int thread) {
    const int warp = thread / 32;
    const uint32_t first = w + (kGates ? warp / 2 : warp) * kPartBytes;
    QuantRows<kKind, kGates> rows(a, first, first + 2 * kPartBytes, warp % 2 == 1, thread % 32);
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // 64 inputs
      uint32_t d[2][2][4];
      rows.dequantise(half * 2, d[0]);
      rows.dequantise(half * 2 + 1, d[1]);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        wgmma(sum, d[i / 2][i % 2], wgmma_operand(x + half * kXBytes + i * 32, 1024, 16));
      }
      wgmma_commit();
      if (half == 0) {
        wgmma_wait<0>();
      }
    }
  }
};

template <>
struct ExpertW<PackedKind::kF8> : ExpertTiles<PackedKind::kF8> {};
template <>
struct ExpertW<PackedKind::kQ8> : ExpertTiles<PackedKind::kQ8> {};
template <>
struct ExpertW<PackedKind::kQ4> : ExpertTiles<PackedKind::kQ4> {};

}  // namespace warprow::cuda
