// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/cuda/tensor_map.h"
#include "kernels/cuda/mbarrier.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/linear/finish.cuh"
#include "kernels/linear/largest.cuh"
#include "kernels/linear/small_m/sm90_gemm.h"

#include <cstdint>
#include <cuda.h>

// From the sums of a consumer warpgroup to y, for the GEMMs of many rows: scale, bias, epilogue; through shared memory by TMA.
namespace warprow::cuda {

namespace sm90_large_detail {

constexpr int kBoxBytes = 64 * 128;  // 64 rows of 128 bytes

// Scales of rows of w: none.
struct NoWScales {
  static constexpr bool kAny = false;
};

// A warpgroup's 64 rows of a tile. kCols: rows of w in it; WScales: what products are multiplied by first. Boxes of up to 128
// bytes of each row take turns with kBoxes places of the staging memory.
template <LinearEpilogue kEpilogue, bool kF32, int kCols, int kBoxes, typename WScales>
class LargeOutputs {
 public:
  // group: of the CTA's warpgroups; staging: its memory for kBoxes boxes.
  __device__ LargeOutputs(const Sm90GemmArgs& args,
                          const CUtensorMap& y_map,
                          const WScales& w_scales,
                          int group,
                          uint32_t staging)
      : a_(args),
        y_map_(y_map),
        w_scales_(w_scales),
        group_(group),
        warp_(static_cast<int>(threadIdx.x) % 128 / 32),
        lane_(static_cast<int>(threadIdx.x) % 32),
        leads_(threadIdx.x % 128 == 0),
        staging_(staging) {}

  // Of y, in boxes.
  [[nodiscard]] static CUtensorMap map(const Sm90GemmArgs& a) {
    return tensor_map<2>(
        a.y,
        {static_cast<uint64_t>(kGates ? a.n / 2 : a.n), static_cast<uint64_t>(a.m)},
        {static_cast<uint64_t>(a.y_stride) * (kWide ? 4 : 2)},
        {kChunk, 64},
        CU_TENSOR_MAP_L2_PROMOTION_NONE,
        kWide ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        kRowBytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
        : kRowBytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                          : CU_TENSOR_MAP_SWIZZLE_32B);
  }

  // scales: of the thread's two rows. row: the warpgroup's first; col: the tile, by columns.
  __device__ __forceinline__ void write(int row,
                                        int col,
                                        const float (&scales)[2],
                                        const float (&sum)[kCols / 2]) {
    // A branch for each output would keep them from being computed side by side.
    if (a_.bias == nullptr) {
      write_chunks<false>(row, col, scales, sum);
    } else {
      write_chunks<true>(row, col, scales, sum);
    }
  }
  // Waits until all is written.
  __device__ void wait() const {
    if (leads_) {
      tma_store_wait();
    }
  }

 private:
  static constexpr bool kGates = kEpilogue == LinearEpilogue::kSwiGlu;
  static constexpr bool kWide = kEpilogue == LinearEpilogue::kAdd || kF32;
  static constexpr int kOut = kGates ? kCols / 2 : kCols;  // columns of y in a tile
  static constexpr int kRowBytes =
      kWide || kOut % 64 == 0 ? 128 : (kOut % 32 == 0 ? 64 : 32);  // of a box
  static constexpr int kChunk = kRowBytes / (kWide ? 4 : 2);       // columns of y in it
  static_assert(kOut % kChunk == 0);

  // Scales of a tile's rows of w, by pairs of adjacent rows. They are loaded together, so that one wait is for all of them.
  using WScalePairs = float2[WScales::kAny ? kCols / 8 : 1];

  // The first of two rows of w whose products are number 4 i and 4 i + 1 of the thread, and 4 i + 2 and 4 i + 3.
  [[nodiscard]] __device__ int w_row_of(int tile_col, int i) const {
    const bool up = i >= kOut / 8;
    return (up ? a_.n / 2 : 0) + tile_col * kOut + (i - (up ? kOut / 8 : 0)) * 8 + lane_ % 4 * 2;
  }

  __device__ __forceinline__ void load_scales(int tile_col, WScalePairs& of_w) const {
    if constexpr (WScales::kAny) {
#pragma unroll
      for (int i = 0; i < kCols / 8; ++i) {
        const int w_row = w_row_of(tile_col, i);
        of_w[i] = w_row < a_.n ? w_scales_.two_at(w_row) : float2{0.0F, 0.0F};
      }
    }
  }

  // Product i of the thread as an output: row lane / 4, or lane / 4 + 8; column i / 4 * 8 + lane % 4 * 2 + i % 2.
  template <bool kBias>
  [[nodiscard]] __device__ __forceinline__ float finished(
      float product, int i, int tile_col, const float (&scales)[2], const WScalePairs& of_w) const {
    if constexpr (WScales::kAny) {
      product = __fmul_rn(product, i % 2 == 0 ? of_w[i / 4].x : of_w[i / 4].y);
    }
    float bias = 0.0F;
    if constexpr (kBias) {
      const int w_row = w_row_of(tile_col, i / 4) + i % 2;
      bias = w_row < a_.n ? __ldg(a_.bias + w_row) : 0.0F;
    }
    return scaled(product, scales[i % 4 / 2], bias);
  }

  template <bool kBias>
  __device__ __forceinline__ void write_chunks(int first_row,
                                               int tile_col,
                                               const float (&scales)[2],
                                               const float (&sum)[kCols / 2]) {
    WScalePairs of_w;
    load_scales(tile_col, of_w);
    const auto value = [&](int i) { return finished<kBias>(sum[i], i, tile_col, scales, of_w); };
#pragma unroll
    for (int first = 0; first < kOut; first += kChunk) {
      const uint32_t to = staging_ + turn_ * kBoxBytes;
      turn_ = (turn_ + 1) % kBoxes;
      if constexpr (kWide) {
        stage_f32(to, first, value);
      } else {
        stage_bf16(to, first, value);
      }
      fence_async_proxy();
      // Behind the barrier the next box's place is free.
      if (leads_) {
        tma_store_wait_read<kBoxes - 2>();
      }
      named_sync(1 + group_, 128);
      if (leads_) {
        if constexpr (kEpilogue == LinearEpilogue::kAdd) {
          tma_add_2d(y_map_, to, tile_col * kOut + first, first_row);
        } else {
          tma_store_2d(y_map_, to, tile_col * kOut + first, first_row);
        }
        tma_store_commit();
      }
    }
  }

  // value: of a product's number, its output.
  template <typename Value>
  __device__ __forceinline__ void stage_bf16(uint32_t to, int first, const Value& value) const {
    const int row = warp_ * 16 + lane_ / 8 % 2 * 8 + lane_ % 8;  // of the lane's stmatrix address
#pragma unroll
    for (int i = 0; i < kChunk / 8; i += 2) {
      uint32_t four[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = (first / 8 + i + j / 2) * 4 + j % 2 * 2;
        float v[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          v[c] = value(at + c);
          if constexpr (kGates) {
            v[c] = __fadd_rn(gated(v[c], value(at + c + kCols / 4)), 0.0F);
          }
        }
        four[j] = pack_bf16(v[0], v[1]);
      }
      const int chunk = i + lane_ / 16;        // of 8 columns
      constexpr int kPlaces = kRowBytes / 16;  // of a row, which TMA's swizzle permutes by row
      const int place = chunk ^ (row / (8 / kPlaces) % kPlaces);
      store_matrices(to + row * kRowBytes + place * 16, four);
    }
  }

  template <typename Value>
  __device__ __forceinline__ void stage_f32(uint32_t to, int first, const Value& value) const {
#pragma unroll
    for (int i = 0; i < kChunk / 8; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = (first / 8 + i) * 4 + half * 2;
        const int row = warp_ * 16 + half * 8 + lane_ / 4;
        const int chunk = i * 2 + lane_ % 4 / 2;  // of 4 columns
        store_two(
            to + row * 128 + (chunk ^ (row % 8)) * 16 + lane_ % 2 * 8, value(at), value(at + 1));
      }
    }
  }

  const Sm90GemmArgs& a_;
  const CUtensorMap& y_map_;
  WScales w_scales_;
  int group_;
  int warp_;  // of the warpgroup
  int lane_;
  bool leads_;
  uint32_t staging_;
  int turn_ = 0;  // the place of the box that is written next
};

// The largest output of each 64 adjacent ones in place of y (LinearEpilogue::kMax), from registers.
template <int kCols>
class LargeMaxima {
 public:
  __device__ LargeMaxima(const Sm90GemmArgs& args,
                         const CUtensorMap& /*y_map*/,
                         const NoWScales& /*w_scales*/,
                         int /*group*/,
                         uint32_t /*staging*/)
      : a_(args),
        warp_(static_cast<int>(threadIdx.x) % 128 / 32),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  [[nodiscard]] static CUtensorMap map(const Sm90GemmArgs& /*args*/) { return {}; }

  // As of LargeOutputs.
  __device__ __forceinline__ void write(int row,
                                        int col,
                                        const float (& /*scales*/)[2],
                                        const float (&sum)[kCols / 2]) const {
    const int per_row = a_.n / kMaxOutputs;
    const int first = col * kCols + lane_ % 4 * 2;  // of the lane's outputs
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Largest mine;  // of the 64 outputs that this lane writes
#pragma unroll
      for (int number = 0; number < kNumbers; ++number) {
        Largest largest = Largest::of_numbers_from(0);
#pragma unroll
        for (int i = 0; i < kMaxOutputs / 4; ++i) {
          const int chunk = number * 8 + i / 2;  // of 8 outputs
          largest.take(sum[chunk * 4 + half * 2 + i % 2], chunk * 8 + i % 2);
        }
        largest.output += first;
        largest.take_lanes<4>();
        if (lane_ % 4 == number) {
          mine = largest;
        }
      }
      const int x_row = row + warp_ * 16 + half * 8 + lane_ / 4;
      const int number = col * kNumbers + lane_ % 4;
      if (x_row < a_.m && lane_ % 4 < kNumbers && number < per_row) {
        a_.maxima[static_cast<int64_t>(x_row) * per_row + number] = {mine.value, mine.output};
      }
    }
  }
  __device__ void wait() const {}

 private:
  static constexpr int kNumbers = kCols / kMaxOutputs;  // of maxima in a row of the tile
  static_assert(kCols % kMaxOutputs == 0 && kNumbers <= 4);

  const Sm90GemmArgs& a_;
  int warp_;  // of the warpgroup
  int lane_;
};

}  // namespace sm90_large_detail

}  // namespace warprow::cuda
