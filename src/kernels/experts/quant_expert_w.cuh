// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/experts/expert_w.cuh"
#include "kernels/experts/sm90_expert_gemm.h"
#include "kernels/linear/quant/quant_numbers.cuh"
#include "kernels/linear/quant/quant_tiles.h"

#include <cstddef>
#include <cstdint>
#include <cuda_runtime.h>

// ExpertW of matrices in tiles of linear operations (kernels/linear/quant/quant_tiles.h), dequantised to quant_weight.
namespace warprow::cuda {

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
