// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/ptx.cuh"
#include "kernels/linear/small_m/sm80_gemm.h"

#include <cstdint>

namespace warprow::cuda::sm80_gemm_detail {

// Byte offset of a 16-byte unit in a row of 256 bytes. The same unit of eight rows is in different banks.
__device__ __forceinline__ int swizzled(int row, int unit) { return (unit ^ (row & 7)) * 16; }

// The rows of x in shared memory as bf16, times the norm's weights: [chunk][m] rows of 256 bytes. All warps
// of a CTA compute it. One or more warps share a row, two chunks of 16 lanes each. CTAs start at different
// rows, so that they do not all load the same cache lines at once.
class WeightedX {
 public:
  __device__ WeightedX(const Sm80GemmArgs& p, int num_warps, unsigned char* x, float* squares)
      : p_(p),
        x_(x),
        squares_(squares),
        lane_(static_cast<int>(threadIdx.x) % 32),
        row_warps_(min((sm80_gemm_chunks(p.k) + 1) / 2, num_warps)),
        rows_at_once_(num_warps / row_warps_),
        row_(static_cast<int>(threadIdx.x) / 32 / row_warps_),
        row_warp_(static_cast<int>(threadIdx.x) / 32 % row_warps_),
        first_chunk_(row_warp_ * 2 + lane_ / 16) {}

  // No earlier kernel writes the weights, so prefetch them before griddepcontrol.wait.
  __device__ void fetch_norm_weight() {
    const int col = col_of(first_chunk_);
    if (p_.norm_weight != nullptr && col < p_.k) {
      load_weight(col, weight_);
    }
  }

  // Writes the weighted rows; each warp also writes its part of a row's sum of squares.
  __device__ void copy() const {
    if (row_ >= rows_at_once_) {
      return;
    }
    for (int i = row_; i < p_.m; i += 2 * rows_at_once_) {  // two rows, for more loads in flight
      const bool second = i + rows_at_once_ < p_.m;
      const int rows[2] = {turned(i), second ? turned(i + rows_at_once_) : 0};
      float squares[2] = {};
      for (int chunk = first_chunk_; chunk < sm80_gemm_chunks(p_.k); chunk += row_warps_ * 2) {
        const int col = col_of(chunk);
        float4 x[2][2] = {};
        if (col < p_.k) {
          load_x(rows[0], col, x[0]);
          if (second) {
            load_x(rows[1], col, x[1]);
          }
        }
        float4 g[2] = {weight_[0], weight_[1]};
        if (chunk != first_chunk_ && col < p_.k) {
          load_weight(col, g);
        }
        squares[0] = add_squares(x[0][1], add_squares(x[0][0], squares[0]));
        squares[1] = add_squares(x[1][1], add_squares(x[1][0], squares[1]));
        *reinterpret_cast<uint4*>(place(rows[0], chunk)) = weighted(x[0], g);
        if (second) {
          *reinterpret_cast<uint4*>(place(rows[1], chunk)) = weighted(x[1], g);
        }
      }
#pragma unroll
      for (int o = 16; o > 0; o /= 2) {
        squares[0] += __shfl_xor_sync(0xFFFFFFFFU, squares[0], o);
        squares[1] += __shfl_xor_sync(0xFFFFFFFFU, squares[1], o);
      }
      if (lane_ == 0) {
        squares_[rows[0] * kSm80GemmMaxTeams * kSm80GemmWarps + row_warp_] = squares[0];
        if (second) {
          squares_[rows[1] * kSm80GemmMaxTeams * kSm80GemmWarps + row_warp_] = squares[1];
        }
      }
    }
  }

 private:
  __device__ int turned(int i) const {
    return static_cast<int>((static_cast<unsigned>(i) + blockIdx.x) % static_cast<unsigned>(p_.m));
  }
  __device__ int col_of(int chunk) const { return chunk * kSm80GemmChunk + lane_ % 16 * 8; }
  __device__ unsigned char* place(int row, int chunk) const {
    return x_ + (chunk * p_.m + row) * kSm80GemmChunkBytes + swizzled(row, lane_ % 16);
  }
  __device__ void load_x(int row, int col, float4 (&x)[2]) const {
    const auto* from = static_cast<const float*>(p_.x) + row * p_.x_stride + col;
    x[0] = *reinterpret_cast<const float4*>(from);
    x[1] = *reinterpret_cast<const float4*>(from + 4);
  }
  __device__ void load_weight(int col, float4 (&g)[2]) const {
    g[0] = __ldg(reinterpret_cast<const float4*>(p_.norm_weight + col));
    g[1] = __ldg(reinterpret_cast<const float4*>(p_.norm_weight + col) + 1);
  }
  __device__ static float add_squares(const float4& v, float to) {
    return fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, to))));
  }
  __device__ static uint4 weighted(const float4 (&x)[2], const float4 (&g)[2]) {
    return make_uint4(pack_bf16(x[0].x * g[0].x, x[0].y * g[0].y),
                      pack_bf16(x[0].z * g[0].z, x[0].w * g[0].w),
                      pack_bf16(x[1].x * g[1].x, x[1].y * g[1].y),
                      pack_bf16(x[1].z * g[1].z, x[1].w * g[1].w));
  }

  const Sm80GemmArgs& p_;
  unsigned char* x_;
  float* squares_;  // [m][warps of two teams]
  int lane_;
  int row_warps_;  // warps that share a row
  int rows_at_once_;
  int row_;  // this warp's first row; the warp is idle if it is >= rows_at_once_
  int row_warp_;
  int first_chunk_;
  float4 weight_[2] = {};
};

}  // namespace warprow::cuda::sm80_gemm_detail
