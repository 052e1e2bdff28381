// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/cuda/pdl.cuh"
#include "kernels/cuda/mbarrier.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/linear/finish.cuh"
#include "kernels/linear/row_scales.cuh"
#include "kernels/linear/small_m/sm90_block.cuh"

#include <algorithm>
#include <cstdint>
#include <cuda_bf16.h>
#include <type_traits>

// From sums in shared memory to y in sm90_bf16_gemm_small_m: bias, epilogue and the halves of norms.
namespace warprow::cuda::sm90_gemm_detail {

// Computes 1 / rms of the rows that this CTA finishes, for half-normalised x. The consumers call it before their products,
// where registers leave no room for other warps (sm90_quant_gemm.cuh).
template <int kConsumers>
__device__ void find_row_scales(const Params& p, const Place& at, float* scales) {
  constexpr int kLanes = 4;  // a row
  const int parts = p.a.k / 64;
  const int lane = threadIdx.x % kLanes;
  for (int first = 0; first < at.num_rows; first += kConsumers / kLanes) {
    const int t = first + threadIdx.x / kLanes;
    const auto scale_from = [&](const auto* squares) {
      return inverse_rms<8>(t < at.num_rows ? squares + at.row(t) * parts : nullptr,
                            parts,
                            lane,
                            static_cast<float>(p.a.k),
                            p.a.norm_eps);
    };
    const float scale = p.a.m <= kMaxQuarteredRows
                            ? scale_from(reinterpret_cast<const float4*>(p.a.squares))
                            : scale_from(p.a.squares);
    if (lane == 0 && t < at.num_rows) {
      scales[t] = scale;
    }
  }
}

// Warps that find scales while the consumers multiply. One would be late with many rows.
template <int kCols>
constexpr int kScaleWarps = kCols < 128 ? 1 : 3;  // with the one that loads, a warpgroup

// The same by one of kScaleWarps warps, beside the products.
template <int kCols>
__device__ __forceinline__ void find_row_scales_by_warp(const Params& p,
                                                        const Place& at,
                                                        int warp,
                                                        float* scales) {
  constexpr int kRows = std::clamp(kCols / 8, 2, 4);  // of four lanes, at once
  constexpr int kStride = kScaleWarps<kCols> * 8 * kRows;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto leave = [&](int t, float scale) {
    if (lane % 4 == 0 && t < at.num_rows) {
      scales[t] = scale;
    }
  };
  if (p.a.m <= kMaxQuarteredRows) {
    const int parts = p.a.k / 64;
    const auto* squares = reinterpret_cast<const float4*>(p.a.squares);
    const int t = warp * 8 + lane / 4;
    leave(t,
          inverse_rms(t < at.num_rows ? squares + at.row(t) * parts : nullptr,
                      parts,
                      lane % 4,
                      static_cast<float>(p.a.k),
                      p.a.norm_eps));
    return;
  }
#pragma unroll 1
  for (int first = warp * 8 * kRows; first < at.num_rows; first += kStride) {
    RowScales<kRows, 4> rows;
    rows.begin(p.a, at.row(first + lane / 4), at.row(at.num_rows - 1));
    const auto& found = rows.finish(p.a);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      leave(first + 8 * r + lane / 4, found[r]);
    }
  }
}

// What these warps do. The consumers wait for them by await_row_scales.
template <int kConsumers, int kCols>
__device__ __forceinline__ void leave_row_scales(const Params& p,
                                                 const Place& at,
                                                 int warp,
                                                 float* scales) {
  if (p.a.squares != nullptr) {
    pdl_wait();
    find_row_scales_by_warp<kCols>(p, at, warp, scales);
    named_arrive(2, kConsumers + 32 * kScaleWarps<kCols>);
  }
}
template <int kConsumers, int kCols>
__device__ __forceinline__ void await_row_scales(const Params& p) {
  if (p.a.squares != nullptr) {
    named_sync(2, kConsumers + 32 * kScaleWarps<kCols>);
  }
}

// Writes the sums to shared memory: [kCols][kPitch] float32.
template <int kCols, int kGroups>
__device__ void store_partial_sums(unsigned char* sums, const float (&sum)[kCols / 2]) {
  using S = Sizes<kCols, kGroups>;
  const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  float* to = reinterpret_cast<float*>(sums) + threadIdx.x % 4 * 2 * S::kPitch + row;
#pragma unroll
  for (int i = 0; i < kCols / 2; ++i) {
    to[(i / 4 * 8 + i % 2) * S::kPitch + i / 2 % 2 * 8] = sum[i];
  }
}

// One thread: sends each other CTA of the tile this CTA's partial sums of the rows that the other CTA finishes.
template <int kCols, int kGroups>
__device__ void exchange_sums(const Params& p, const Place& at, uint32_t data, uint32_t barrier) {
  constexpr int kRowBytes = Sizes<kCols, kGroups>::kPitch * 4;
  barrier_arrive_expecting(barrier, (p.split - 1) * at.num_rows * kRowBytes);
  const uint32_t to = data + p.parts_at + at.part * p.part_rows * kRowBytes;
#pragma unroll 1
  for (int part = 0; part < p.split; ++part) {
    const int rows = at.rows_of(p, part);
    if (rows > 0 && part != at.part) {
      remote_copy(remote_address(to, part),
                  data + part * p.part_rows * kRowBytes,
                  rows * kRowBytes,
                  remote_address(barrier, part));
    }
  }
}

// Scales of rows of w, in units of 16 rows (kernels/linear/fp8/fp8_tiles.h).
struct WScales {
  const std::byte* first = nullptr;
  int64_t unit_bytes = 0;
  bool ones = false;  // none are needed

  // Of four adjacent rows, of which the first is a multiple of 4.
  [[nodiscard]] __device__ float4 four_of(int row) const {
    return ones ? float4{1.0F, 1.0F, 1.0F, 1.0F}
                : __ldg(reinterpret_cast<const float4*>(first + row / 16 * unit_bytes) +
                        row % 16 / 4);
  }
};

// Writes outputs: a thread has four adjacent columns of some rows of y. kScaledW: products are multiplied by w's scales, and
// all rows of x have scales. kTerm: addends in shared memory have the layout of the sums (sm90_low_rank.cuh).
template <int kCols, int kGroups, bool kScaledW = false, bool kTerm = false>
class Outputs {
 public:
  using S = Sizes<kCols, kGroups>;
  __device__ Outputs(const Params& p,
                     const Place& at,
                     const unsigned char* sums,
                     const float* scales)
      : p_(p),
        at_(at),
        sums_(kept_address(sums)),
        parts_(sums_ + p.parts_at),
        scales_(kept_address(scales)),
        gate_(p.a.epilogue == LinearEpilogue::kSwiGlu),
        span_(gate_ ? S::kRows / 2 : S::kRows),
        end_(gate_ ? p.a.n / 2 : p.a.n),
        first_(threadIdx.x / (span_ / 4)),
        stride_(S::kConsumers / (span_ / 4)),
        column_(threadIdx.x % (span_ / 4) * 4),
        output_(at.tile * span_ + column_) {}

  __device__ void set_w_scales(const WScales& scales) { w_scales_ = scales; }

  // Loads the inputs that no kernel writes.
  __device__ void fetch_constants() {
    if (kScaledW && output_ < end_) {
      w_scale_ = w_scales_.four_of(output_);
      up_scale_ = gate_ ? w_scales_.four_of(end_ + output_) : w_scale_;
    }
    if (p_.a.bias != nullptr) {
      bias_ = four_of(p_.a.bias, output_);
      up_bias_ = gate_ ? four_of(p_.a.bias, end_ + output_) : bias_;
    }
    if (p_.a.next_weight != nullptr) {
      next_weight_ = four_of(p_.a.next_weight, output_);
    }
  }
  // Loads the old y, which sums are added to, ahead of time.
  __device__ void fetch_old() { p_.vectors ? fetch_old<true>(first_) : fetch_old<false>(first_); }

  // The form is chosen once: with a branch for each row, rows would wait for one another.
  __device__ void finish() {
    if (!kTerm && !p_.vectors) {
      finish_singly();
    } else if (gate_) {
      p_.a.y_f32 ? finish_rows<true, true, false>() : finish_rows<true, false, false>();
    } else if (p_.a.next_weight != nullptr) {
      finish_rows<false, true, true>();
    } else if (p_.a.y_f32) {
      finish_rows<false, true, false>();
    } else {
      finish_rows<false, false, false>();
    }
  }

 private:
  static constexpr int kPitchBytes = S::kPitch * 4;

  // Rows that a thread finishes at once, of every eighth or 16th that it has. More take more registers, and small CTAs must
  // leave room for others on their SM.
  static constexpr int kAtOnce = kCols < 32                                  ? kCols / 8
                                 : kCols <= 64 && (kScaledW || kGroups == 1) ? 2
                                                                             : 4;
  static_assert(kAtOnce >= 1);

  using Rows = float4[kAtOnce];  // of a thread

  // While outputs are finished little else runs on the SM, and a scheduler has one to three warps. So instructions count: addresses are
  // advanced, and all that is known before is a constant.
  template <bool kGate, bool kF32, bool kNorm>
  __device__ __forceinline__ void finish_rows() {
    using T = std::conditional_t<kF32, float, __nv_bfloat16>;
    constexpr int kSpan = kGate ? S::kRows / 2 : S::kRows;
    constexpr int kStride = S::kConsumers / (kSpan / 4);
    constexpr int kStep = kAtOnce * kStride;
    const bool quarters = p_.a.m <= kMaxQuarteredRows;
    const int64_t y_step = kStride * p_.a.y_stride;
    auto* y = static_cast<T*>(p_.a.y) + place(first_);
    auto* next_x =
        kNorm ? static_cast<__nv_bfloat16*>(p_.a.next_x) + at_.row(first_) * p_.a.n + output_
              : nullptr;
    float* squares_at = kNorm ? squares_of(at_.row(first_), quarters) : nullptr;
    const int next_step = kStride * p_.a.n;
    const int squares_step = next_step / (quarters ? 16 : 64);
#pragma unroll 1
    for (int begin = 0; begin < at_.num_rows; begin += kStep) {  // alike in all threads
      Rows old;
      if constexpr (kF32 && !kGate) {  // others are never added to y
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          old[j] = old_[j];
        }
        if (begin + kStep < at_.num_rows) {
          fetch_old<true>(begin + kStep + first_);
        }
      }
      Rows v;
      totals<kStride>(begin, column_, bias_, w_scale_, v);
      if constexpr (kTerm && kGate) {
        add_term<kStride>(begin, column_, v);
      } else if constexpr (kTerm && kF32) {
        add_term<kStride>(begin, column_, old);
      }
      if constexpr (kGate) {
        Rows up;
        totals<kStride>(begin, column_ + kSpan, up_bias_, up_scale_, up);
        if constexpr (kTerm) {
          add_term<kStride>(begin, column_ + kSpan, up);
        }
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          v[j] = {gated(v[j].x, up[j].x),
                  gated(v[j].y, up[j].y),
                  gated(v[j].z, up[j].z),
                  gated(v[j].w, up[j].w)};
        }
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        v[j] = sum_of(v[j], kF32 && !kGate ? old[j] : float4{});
      }
      if constexpr (kTerm && !kGate && !kF32) {
        for (float4& row : v) {
          row = rounded(row);
        }
        add_term<kStride>(begin, column_, v);
      }
      float squares[kAtOnce];
      if constexpr (kNorm) {
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          squares[j] = quarter_of_squares(v[j], ~0U);
        }
        if (!quarters) {
#pragma unroll
          for (int j = 0; j < kAtOnce; ++j) {
            squares[j] = sum_of_quarters(squares[j], ~0U);
          }
        }
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (begin + first_ + j * kStride < at_.num_rows && output_ < end_) {
          store_vector(y, v[j]);
          if constexpr (kNorm) {
            store_vector(next_x, weighted(v[j], next_weight_));
            if (threadIdx.x % 16 < (quarters ? 4 : 1)) {
              *squares_at = squares[j];
            }
          }
        }
        y += y_step;
        if constexpr (kNorm) {
          next_x += next_step;
          squares_at += squares_step;
        }
      }
    }
  }

  // Totals of the thread's rows from `begin` on. A row past the CTA's last gets the last one's, which is not stored.
  template <int kStride>
  __device__ __forceinline__ void totals(
      int begin, int r, const float4& bias, const float4& of_w, Rows& v) const {
    uint32_t t[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      t[j] = min(begin + first_ + j * kStride, at_.num_rows - 1);
      v[j] = four_at(rows_of_part(0) + r * 4 + t[j] * kPitchBytes);
    }
#pragma unroll 1
    for (int part = 1; part < p_.split; ++part) {
      const uint32_t rows = rows_of_part(part) + r * 4;
      Rows more;
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        more[j] = four_at(rows + t[j] * kPitchBytes);
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        v[j] = sum_of(v[j], more[j]);
      }
    }
    const bool has_scale = kScaledW || p_.a.squares != nullptr;
    float scales[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      scales[j] = has_scale ? __uint_as_float(load_shared(scales_ + t[j] * 4)) : 1.0F;
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      v[j] = finished(v[j], scales[j], bias, of_w);
    }
  }

  // Adds what rows with adapters add to four columns, as low_rank_expand does to stored outputs.
  template <int kStride>
  __device__ __forceinline__ void add_term(int begin, int r, Rows& v) const {
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int t = min(begin + first_ + j * kStride, at_.num_rows - 1);
      v[j] = sum_of(v[j], four_at(sums_ + p_.term_at + r * 4 + t * kPitchBytes));
    }
  }
  [[nodiscard]] static __device__ __forceinline__ float4 rounded(const float4& v) {
    const auto round = [](float x) { return __bfloat162float(__float2bfloat16_rn(x)); };
    return {round(v.x), round(v.y), round(v.z), round(v.w)};
  }

  // A row's product, scaled by 1 / rms if x is half-normalised, and its bias.
  [[nodiscard]] static __device__ __forceinline__ float4 finished(float4 v,
                                                                  float scale,
                                                                  const float4& bias,
                                                                  const float4& of_w) {
    if constexpr (kScaledW) {
      v = weighted(v, of_w);
    }
    return {scaled(v.x, scale, bias.x),
            scaled(v.y, scale, bias.y),
            scaled(v.z, scale, bias.z),
            scaled(v.w, scale, bias.w)};
  }

  // For a y that cannot be accessed as vectors, one row after the other. No norm begins there (params_of).
  __device__ void finish_singly() {
    for (int t = first_; t < at_.num_rows; fetch_old<false>(t)) {
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j, t += stride_) {
        if (t < at_.num_rows && output_ < end_) {
          finish_four(t, old_[j]);
        }
      }
    }
  }

  // t: index among this CTA's rows of x
  [[nodiscard]] __device__ int64_t place(int t) const {
    return at_.row(t) * p_.a.y_stride + output_;
  }

  // Loads four of n values. Outputs past n are not stored.
  [[nodiscard]] __device__ float4 four_of(const float* from, int first) const {
    const int last = p_.a.n - 1;
    return {__ldg(from + min(first, last)),
            __ldg(from + min(first + 1, last)),
            __ldg(from + min(first + 2, last)),
            __ldg(from + min(first + 3, last))};
  }

  template <bool kVectors>
  __device__ __forceinline__ void fetch_old(int t) {
    if (p_.a.epilogue != LinearEpilogue::kAdd || output_ >= end_) {
      return;
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j, t += stride_) {
      if (t < at_.num_rows) {
        const float* from = static_cast<const float*>(p_.a.y) + place(t);
        old_[j] = kVectors ? *reinterpret_cast<const float4*>(from) : old_singly(from);
      }
    }
  }

  [[nodiscard]] __device__ float4 old_singly(const float* from) const {
    return {from[0],
            output_ + 1 < end_ ? from[1] : 0.0F,
            output_ + 2 < end_ ? from[2] : 0.0F,
            output_ + 3 < end_ ? from[3] : 0.0F};
  }

  // The rows that this CTA finishes, in a part of k.
  [[nodiscard]] __device__ __forceinline__ uint32_t rows_of_part(int part) const {
    return part == at_.part ? sums_ + at_.first_row * kPitchBytes
                            : parts_ + part * p_.part_rows * kPitchBytes;
  }
  [[nodiscard]] static __device__ __forceinline__ float4 four_at(uint32_t shared) {
    const uint4 v = load_shared_four(shared);
    return {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)};
  }

  [[nodiscard]] __device__ float4 total(int t,
                                        int r,
                                        const float4& bias,
                                        const float4& of_w) const {
    const uint32_t at = r * 4 + t * kPitchBytes;
    float4 v = four_at(rows_of_part(0) + at);
#pragma unroll 1
    for (int part = 1; part < p_.split; ++part) {
      v = sum_of(v, four_at(rows_of_part(part) + at));
    }
    const bool has_scale = kScaledW || p_.a.squares != nullptr;
    return finished(
        v, has_scale ? __uint_as_float(load_shared(scales_ + t * 4)) : 1.0F, bias, of_w);
  }

  __device__ void finish_four(int t, const float4& old) const {
    float4 v = total(t, column_, bias_, w_scale_);
    if (gate_) {
      const float4 up = total(t, column_ + span_, up_bias_, up_scale_);
      v = {gated(v.x, up.x), gated(v.y, up.y), gated(v.z, up.z), gated(v.w, up.w)};
    }
    v = sum_of(v, old);
    if (p_.a.y_f32) {
      store_singly(static_cast<float*>(p_.a.y) + place(t), v);
    } else {
      store_singly(static_cast<__nv_bfloat16*>(p_.a.y) + place(t), v);
    }
  }

  // Where the sum of squares of a row's 64 adjacent columns goes, which 16 lanes have; or its quarters, by lane.
  [[nodiscard]] __device__ __forceinline__ float* squares_of(int64_t row, bool quarters) const {
    const int64_t block = row * (p_.a.n / 64) + output_ / 64;
    return p_.a.next_squares + (quarters ? block * 4 + threadIdx.x % 16 : block);
  }

  template <typename T>
  __device__ __forceinline__ static void store_vector(T* to, const float4& v) {
    struct alignas(4 * sizeof(T)) Four {
      T v[4];
    };
    *reinterpret_cast<Four*>(to) = Four{{T(v.x), T(v.y), T(v.z), T(v.w)}};
  }
  template <typename T>
  __device__ void store_singly(T* to, const float4& v) const {
    const T four[4] = {T(v.x), T(v.y), T(v.z), T(v.w)};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (output_ + i < end_) {
        to[i] = four[i];
      }
    }
  }

  const Params& p_;
  const Place& at_;
  uint32_t sums_;   // in shared memory: this CTA's sums
  uint32_t parts_;  // the other CTAs' partial sums
  uint32_t scales_;
  bool gate_;
  int span_;    // outputs of the tile
  int end_;     // of the whole product
  int first_;   // first of the CTA's rows for this thread
  int stride_;  // between a thread's rows
  int column_;  // in the tile
  int output_;
  WScales w_scales_;  // kScaledW
  float4 w_scale_ = {};
  float4 up_scale_ = {};
  float4 bias_ = {};
  float4 up_bias_ = {};
  float4 next_weight_ = {};
  float4 old_[kAtOnce] = {};
};

}  // namespace warprow::cuda::sm90_gemm_detail
