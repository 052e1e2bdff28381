// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/experts/expert_lists.h"
#include "kernels/experts/expert_w.cuh"
#include "kernels/experts/sm90_expert_gemm.h"
#include "kernels/linear/quant/quant_numbers.cuh"
#include "kernels/linear/quant/quant_tiles.h"
#include "kernels/linear/quant/quant_tiles_map.h"

#include <cstddef>
#include <cstdint>
#include <cuda_runtime.h>
#include <type_traits>

// ExpertW of matrices in tiles of linear operations (kernels/linear/quant/quant_tiles.h), dequantised to quant_weight.
namespace warprow::cuda {

// A lane's two rows in tiles of linear operations (quant_tiles.h). kGates: a gate row and its up row, row lane / 4 of their
// tiles, or, with `below`, the one 8 below. Else both rows of one tile.
// OfScales: the type of their scales. TwoBf16Scale serves those of one bf16, too.
template <PackedKind kKind, typename OfScales, bool kGates>
class QuantRows {
 public:
  using Numbers = QuantNumbers<kKind>;
  using Words = typename Numbers::Words;

  // first, second: tiles in shared memory; second: the up rows'.
  __device__ __forceinline__
  QuantRows(const ExpertGemmArgs& a, uint32_t first, uint32_t second, bool below, int lane)
      : log2_group_(kKind == PackedKind::kF8 ? 7 : a.log2_group),
        has_zeros_(OfScales::kHasZeros && a.has_zero_points),
        form_(a.scales),
        row_bytes_(kIsFactor ? Bf16Factor::kBytes : quant_scale_bytes(a.scales)),
        rows_{kGates ? int{below} : 0, kGates ? int{below} : 1},
        numbers_{first + lane * 16, second + lane * 16},
        scales_at_{first + quant_number_bytes(kKind) + (lane / 4 + rows_[0] * 8) * row_bytes_,
                   (kGates ? second : first) + quant_number_bytes(kKind) +
                       (lane / 4 + rows_[1] * 8) * row_bytes_} {
    set_codes<kKind>(a.codes, rows_[0], scales_[0]);
    set_codes<kKind>(a.codes, rows_[1], scales_[1]);
  }

  // Inputs 32 i to 32 i + 31 as weights: two operands of 16 inputs. In ascending order of i. kBelow: `below` where it is known when
  // compiling, else -1.
  template <int kBelow = -1>
  __device__ __forceinline__ void dequantise(int i, uint32_t (&d)[2][4]) {
    if ((i * 32 & ((1 << log2_group_) - 1)) == 0) {
      read_scales(i * 32 >> log2_group_);
    }
    if constexpr (kKind == PackedKind::kQ6) {
      if (i == 0) {
#pragma unroll
        for (int load = 0; load < Words::kLoads; ++load) {
          read_load(load);
        }
      }
    } else {
      constexpr int kStepsOfLoad = 8 / Words::kLoads;
      if (i * 2 % kStepsOfLoad == 0) {
        read_load(i * 2 / kStepsOfLoad);
      }
    }
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      if (kKind != PackedKind::kF8 && step == 1 && log2_group_ == 4) {
        read_scales(i * 2 + 1);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        d[step][j] = Numbers::weights(words_[j % 2],
                                      i * 2 + step,
                                      j / 2,
                                      kGates && kBelow >= 0 ? kBelow : rows_[j % 2],
                                      scales_[j % 2]);
      }
    }
  }

 private:
  static constexpr bool kIsFactor = std::is_same_v<OfScales, Bf16Factor>;
  __device__ __forceinline__ void read_load(int load) {
    words_[0].of[load] = load_shared_four(numbers_[0] + load * 512);
    words_[1].of[load] = kGates ? load_shared_four(numbers_[1] + load * 512) : words_[0].of[load];
  }
  __device__ __forceinline__ void read_scales(int group) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const uint32_t at = scales_at_[row] + group * kQuantTileRows * row_bytes_;
      if constexpr (kIsFactor) {
        scales_[row].set_scale(load_shared_short(at));
      } else if constexpr (kKind == PackedKind::kF8 || kKind == PackedKind::kTable) {
        scales_[row].set_scale(load_shared(at));
      } else if constexpr (OfScales::kHasZeros) {
        scales_[row].set_scale(row_bytes_ == 2 ? load_shared_short(at) << 16 : load_shared(at));
        if (has_zeros_) {
          scales_[row].set_zero(Numbers::zero_of(
              rows_[row], load_shared_byte(zeros_at(row) + group * kQuantTileRows)));
        }
      } else {
        scales_[row].set_scale(row_bytes_ == 2 ? load_shared_short(at) : load_shared(at), form_);
      }
    }
  }
  // Behind all scales of the tile.
  [[nodiscard]] __device__ uint32_t zeros_at(int row) const {
    const uint32_t numbers = numbers_[kGates ? row : 0] - threadIdx.x % 32 * 16;
    const uint32_t scales = numbers + quant_number_bytes(kKind);
    return scales + (kQuantTileCols >> log2_group_) * kQuantTileRows * row_bytes_ +
           (scales_at_[row] - scales) / row_bytes_;
  }

  int log2_group_;
  bool has_zeros_;
  QuantScales form_;
  int row_bytes_;
  int rows_[2];  // of registers 0 and 2, and of 1 and 3, as QuantNumbers counts them
  uint32_t numbers_[2];
  uint32_t scales_at_[2];
  OfScales scales_[2];
  Words words_[2];
};

// Tiles of linear operations, four of 16 rows each, dequantised into registers. A gated tile has two of gate rows and two of
// their up rows.
// kScales: kBF16 if they are one bf16, with or without a bias, and groups have no zero points; else kF16.
template <PackedKind kKind, ScaleForm kScales>
struct ExpertTiles {
  using OneBf16 = std::conditional_t<kKind == PackedKind::kF8, Bf16Factor, OneBf16Scale>;
  using Scale =
      std::conditional_t<kKind == PackedKind::kTable,
                         TableScale,
                         std::conditional_t<kScales == ScaleForm::kBF16, OneBf16, TwoBf16Scale>>;

  static constexpr bool kDequantises = true;
  static constexpr float kTimes = QuantNumbers<kKind>::kTimes;
  static constexpr bool kHasSmallTiles = false;
  static constexpr int kInputs = kQuantTileCols;
  // Room for 16 rows. F8: one group. Else up to eight groups of 4 bytes.
  static constexpr int kPartBytes =
      quant_number_bytes(kKind) + kQuantTileRows * (kKind == PackedKind::kF8 ? 4 : 8 * 4);
  static constexpr int kTileBytes = 4 * kPartBytes;
  static constexpr int kPending = 0;  // as MXFP4
  // Of a gated matrix a warp has either upper or lower rows of its tiles, and FP8's lower rows take more operations. Warps of odd
  // groups swap their rows in pairs, so that no quarter of an SM has lower rows alone.
  template <bool kGates>
  static constexpr bool kSwapsWarps = kGates && kKind == PackedKind::kF8;
  template <bool kGates>
  __device__ __forceinline__ static int warp_of(int warp) {
    return kSwapsWarps<kGates> ? warp ^ (warp / 4 & 1) : warp;
  }

  // Of all tiles, since TMA accepts any coordinates.
  template <LinearEpilogue kEpilogue, int kTiles>
  __device__ static int loaded_bytes(const ExpertGemmArgs& a,
                                     int /*first*/,
                                     int count,
                                     int /*step*/) {
    static_assert(kTiles == 1);
    return count * 4 * a.tile_bytes;
  }

  // A gated expert has two matrices; of others all experts are one.
  template <LinearEpilogue kEpilogue>
  static CUtensorMap map(const ExpertGemmArgs& args, int groups) {
    constexpr bool kGates = kEpilogue == LinearEpilogue::kSwiGlu;
    const int64_t units = int64_t{args.num_experts} * (args.n / kQuantTileRows);
    const int64_t matrices = kGates ? int64_t{args.num_experts} * 2 : 1;
    return quant_tiles_map(args.w,
                           args.tile_bytes,
                           args.k,
                           units / matrices,
                           matrices,
                           groups * (kGates ? 2 : 4),
                           kGates ? 2 : 1);
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
    const int at = step * a.tile_pieces;
    if constexpr (kEpilogue == LinearEpilogue::kSwiGlu) {
      tma_load_4d(to, map, barrier, 0, at, tile * 2, expert * 2, policy);
    } else {
      tma_load_4d(to, map, barrier, 0, at, expert * (a.n / kQuantTileRows) + tile * 4, 0, policy);
    }
  }

  // A gated stage has the gate tiles of all groups, then their up tiles.
  template <bool kGates, int kGroups, int kTiles, int kXBytes, int kSums>
  __device__ __forceinline__ static void multiply(const ExpertGemmArgs& a,
                                                  float (&sum)[kSums],
                                                  uint32_t w,
                                                  int group,
                                                  uint32_t x,
                                                  int /*step*/,
                                                  int thread) {
    const int warp = warp_uniform(warp_of<kGates>(group * 4 + thread / 32) % 4);
    const uint64_t of_x = wgmma_operand(x, 1024, 16);
    const uint32_t first = w + (kGates ? group * 2 + warp / 2 : group * 4 + warp) * a.tile_bytes;
    QuantRows<kKind, Scale, kGates> rows(
        a, first, first + kGroups * 2 * a.tile_bytes, warp % 2 == 1, thread % 32);
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // 64 inputs
      uint32_t d[2][2][4];
      if constexpr (kSwapsWarps<kGates>) {
        if (warp % 2 == 0) {
          rows.template dequantise<0>(half * 2, d[0]);
          rows.template dequantise<0>(half * 2 + 1, d[1]);
        } else {
          rows.template dequantise<1>(half * 2, d[0]);
          rows.template dequantise<1>(half * 2 + 1, d[1]);
        }
      } else {
        rows.dequantise(half * 2, d[0]);
        rows.dequantise(half * 2 + 1, d[1]);
      }
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        wgmma(sum, d[i / 2][i % 2], further_operand(of_x, half * kXBytes + i * 32));
      }
      wgmma_commit();
      if (half == 0) {
        wgmma_wait<0>();
      }
    }
  }
};

template <PackedKind kKind, ScaleForm kScales>
  requires(has_quant_tiles(kKind))
struct ExpertW<kKind, kScales> : ExpertTiles<kKind, kScales> {};

}  // namespace warprow::cuda
