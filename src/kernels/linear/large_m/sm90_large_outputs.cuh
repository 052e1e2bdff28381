// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/mbarrier.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/linear/finish.cuh"
#include "kernels/linear/small_m/sm90_gemm.h"

#include <cstdint>
#include <cuda.h>

// From the sums of a consumer warpgroup to y, for the GEMMs of many rows: scale, bias, epilogue; through shared memory by TMA.
namespace warprow::cuda {

namespace sm90_large_detail {

constexpr int kBoxBytes = 64 * 128;   // 64 rows of 128 bytes
constexpr int kStagingBytes = 16384;  // of a warpgroup

// Scales of rows of w: none.
struct NoWScales {
  static constexpr bool kAny = false;
  [[nodiscard]] __device__ static float at(int /*row*/) { return 1.0F; }
};

// A warpgroup's 64 rows of a tile. kCols: rows of w in it; WScales: what products are multiplied by first.
template <LinearEpilogue kEpilogue, bool kF32, int kCols, typename WScales>
class LargeOutputs {
 public:
  // group: of the CTA's warpgroups; staging: its kStagingBytes.
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

  // scales: of the thread's two rows. row: the warpgroup's first; col: the tile, by columns.
  __device__ __forceinline__ void write(int row,
                                        int col,
                                        const float (&scales)[2],
                                        const float (&sum)[kCols / 2]) const {
    if constexpr (kEpilogue == LinearEpilogue::kAdd || kF32) {
      write_f32(row, col, scales, sum);
    } else {
      write_bf16(row, col, scales, sum);
    }
  }
  // Waits until all is written.
  __device__ void wait() const {
    if (leads_) {
      tma_store_wait();
    }
  }

 private:
  // Columns of y in a tile.
  static constexpr int kOut = kEpilogue == LinearEpilogue::kSwiGlu ? kCols / 2 : kCols;

  __device__ void barrier() const { named_sync(1 + group_, 128); }

  [[nodiscard]] __device__ float bias_at(int output) const {
    return a_.bias != nullptr && output < a_.n ? __ldg(a_.bias + output) : 0.0F;
  }

  // Product i of the thread as an output: row lane / 4, or lane / 4 + 8; column i / 4 * 8 + lane % 4 * 2 + i % 2.
  [[nodiscard]] __device__ float finished(float product, float scale, int output) const {
    if constexpr (WScales::kAny) {
      product = __fmul_rn(product, output < a_.n ? w_scales_.at(output) : 0.0F);
    }
    return scaled(product, scale, bias_at(output));
  }

  // Waits until the staging memory of the warpgroup is free.
  __device__ void take_staging() const {
    if (leads_) {
      tma_store_wait_read();
    }
    barrier();
  }

  // Makes what was staged visible to TMA.
  __device__ void leave_staging() const {
    fence_async_proxy();
    barrier();
  }

  __device__ void write_bf16(int first_row,
                             int tile_col,
                             const float (&scales)[2],
                             const float (&sum)[kCols / 2]) const {
    constexpr int kAtOnce = kOut < 128 ? kOut : 128;
    const int row = warp_ * 16 + lane_ / 8 % 2 * 8 + lane_ % 8;  // of the lane's stmatrix address
#pragma unroll
    for (int first = 0; first < kOut; first += kAtOnce) {
      take_staging();
#pragma unroll
      for (int i = 0; i < kAtOnce / 8; i += 2) {
        uint32_t four[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int at = (first / 8 + i + j / 2) * 4 + j % 2 * 2;
          const int output = tile_col * kOut + first + (i + j / 2) * 8 + lane_ % 4 * 2;
          float v[2];
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            v[c] = finished(sum[at + c], scales[j % 2], output + c);
            if constexpr (kEpilogue == LinearEpilogue::kSwiGlu) {
              const float up =
                  finished(sum[at + c + kCols / 4], scales[j % 2], a_.n / 2 + output + c);
              v[c] = __fadd_rn(gated(v[c], up), 0.0F);
            }
          }
          four[j] = pack_bf16(v[0], v[1]);
        }
        const int chunk = i + lane_ / 16;  // of 8 columns
        store_matrices(
            staging_ + chunk / 8 * kBoxBytes + row * 128 + ((chunk % 8) ^ (row % 8)) * 16, four);
      }
      leave_staging();
      if (leads_) {
#pragma unroll
        for (int box = 0; box < kAtOnce / 64; ++box) {
          tma_store_2d(
              y_map_, staging_ + box * kBoxBytes, tile_col * kOut + first + box * 64, first_row);
        }
        tma_store_commit();
      }
    }
  }

  __device__ void write_f32(int first_row,
                            int tile_col,
                            const float (&scales)[2],
                            const float (&sum)[kCols / 2]) const {
#pragma unroll
    for (int first = 0; first < kOut; first += 64) {
      take_staging();
#pragma unroll
      for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int at = (first / 8 + i) * 4 + half * 2;
          const int row = warp_ * 16 + half * 8 + lane_ / 4;
          const int output = tile_col * kOut + first + i * 8 + lane_ % 4 * 2;
          const int chunk = i % 4 * 2 + lane_ % 4 / 2;  // of 4 columns
          const uint32_t to =
              staging_ + i / 4 * kBoxBytes + row * 128 + (chunk ^ (row % 8)) * 16 + lane_ % 2 * 8;
          store_two(to,
                    finished(sum[at], scales[half], output),
                    finished(sum[at + 1], scales[half], output + 1));
        }
      }
      leave_staging();
      if (leads_) {
#pragma unroll
        for (int box = 0; box < 2; ++box) {
          const int col = tile_col * kOut + first + box * 32;
          if constexpr (kEpilogue == LinearEpilogue::kAdd) {
            tma_add_2d(y_map_, staging_ + box * kBoxBytes, col, first_row);
          } else {
            tma_store_2d(y_map_, staging_ + box * kBoxBytes, col, first_row);
          }
        }
        tma_store_commit();
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
};

}  // namespace sm90_large_detail

}  // namespace warprow::cuda
