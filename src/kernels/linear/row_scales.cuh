// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/linear/finish.cuh"
#include "kernels/linear/small_m/sm90_gemm.h"

#include <cstdint>

namespace warprow::cuda {

// 1 / rms of some half-normalised rows of x, found while products run. While tiles come, a read takes more than a microsecond:
// so a lane asks for kDeep sums of squares of each row at once, and what it has asked for may be added later. Four adjacent
// lanes have the same kRows rows, and each of them every fourth sum of a row (inverse_rms).
template <int kRows, int kDeep>
class RowScales {
 public:
  // Asks for the first squares of rows `first`, `first` + 8, ... Rows past `last` get its scale.
  __device__ __forceinline__ void begin(const Sm90GemmArgs& a, int64_t first, int64_t last) {
    num_ = a.squares != nullptr ? a.k / 64 : 0;
    next_ = 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      from_[r] = a.squares + min(first + 8 * r, last) * num_ + threadIdx.x % 4;
      values_[r] = num_ > 0 ? 0.0F : 1.0F;
    }
    ask();
  }

  // Whether squares are on their way. Alike in all lanes.
  [[nodiscard]] __device__ __forceinline__ bool asked() const { return asked_; }

  // Adds the squares that were asked for, and asks for the next. Behind the last the scales are known.
  __device__ __forceinline__ void advance(const Sm90GemmArgs& a) {
#pragma unroll
    for (int d = 0; d < kDeep; ++d) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        values_[r] = __fadd_rn(values_[r], squares_[d][r]);
      }
    }
    ask();
    if (!asked_) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        values_[r] = inverse_rms_of(values_[r], static_cast<float>(a.k), a.norm_eps);
      }
    }
  }

  // Adds all that is left. Returns the scales, which are 1 without squares.
  __device__ __forceinline__ const float (&finish(const Sm90GemmArgs& a))[kRows] {
#pragma unroll 1
    while (asked_) {
      advance(a);
    }
    return values_;
  }

 private:
  __device__ __forceinline__ void ask() {
    asked_ = next_ < num_;
    if (asked_) {
#pragma unroll
      for (int d = 0; d < kDeep; ++d) {
        const bool any = next_ + 4 * d + static_cast<int>(threadIdx.x % 4) < num_;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          squares_[d][r] = any ? from_[r][next_ + 4 * d] : 0.0F;
        }
      }
      next_ += 4 * kDeep;
    }
  }

  const float* from_[kRows];
  float squares_[kDeep][kRows];
  float values_[kRows];  // sums, then scales
  int num_;              // of a row's sums of squares
  int next_;             // to be asked for
  bool asked_;
};

}  // namespace warprow::cuda
