// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/cuda/prefetch.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/linear/finish.cuh"
#include "kernels/linear/fp8/round_inputs.cuh"
#include "kernels/linear/fp8/round_inputs.h"
#include "kernels/linear/linear.h"

namespace warprow::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kHeld = 6;  // chunks of 8 inputs that a thread keeps

__device__ __forceinline__ float row_rms(const RoundInputsArgs& a, int64_t row) {
  const int parts = a.k / 64;
  const int lane = static_cast<int>(threadIdx.x) % 4;
  const auto width = static_cast<float>(a.k);
  return a.m <= kMaxQuarteredRows
             ? inverse_rms(reinterpret_cast<const float4*>(a.squares) + row * parts,
                           parts,
                           lane,
                           width,
                           a.norm_eps)
             : inverse_rms(a.squares + row * parts, parts, lane, width, a.norm_eps);
}

// Prefetches this CTA's share of a.ahead to L2.
__device__ __forceinline__ void prefetch_ahead(const RoundInputsArgs& a) {
  constexpr int64_t kPiece = 4096;
  const int64_t stride = int64_t{kThreads} * gridDim.x * kPiece;
  for (int64_t at = (int64_t{threadIdx.x} * gridDim.x + blockIdx.x) * kPiece; at < a.ahead_bytes;
       at += stride) {
    prefetch_to_l2(a.ahead + at, static_cast<uint32_t>(min(kPiece, a.ahead_bytes - at)));
  }
}

template <bool kGrouped>
__global__ void __launch_bounds__(kThreads) round_inputs_kernel(
    const __grid_constant__ RoundInputsArgs a) {
  __shared__ uint32_t most_of[kThreads / 32];
  __shared__ float row_scale;
  pdl_release();
  prefetch_ahead(a);
  pdl_wait();
  const int64_t row = blockIdx.x;
  const int chunks = a.k / 8;
  const auto* x =
      reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(a.x) + row * a.x_stride);
  auto* out = reinterpret_cast<uint2*>(a.out.numbers + row * a.out.pitch);
  const int thread = static_cast<int>(threadIdx.x);
  uint4 held[kHeld];
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int i = thread + h * kThreads;
    held[h] = i < chunks ? x[i] : uint4{};
  }
  if (thread < 32 && a.squares != nullptr) {
    const float rms = row_rms(a, row);
    if (thread == 0) {
      row_scale = rms;
    }
  }
  if constexpr (kGrouped) {
    const auto round_chunk = [&](int i, const uint4& v) {
      uint32_t most = larger_half(larger_magnitudes(0, v));
#pragma unroll
      for (int far = 8; far > 0; far /= 2) {
        most = max(most, __shfl_xor_sync(~0U, most, far));
      }
      const F8Scale scale = f8_scale(most);
      if (i < chunks) {
        out[i] = rounded_eight(v, 1.0F, scale.factor);
        if (i % 16 == 0) {
          a.out.group_scales[i / 16 * a.out.group_stride + row] = scale.scale;
        }
      }
    };
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      round_chunk(thread + h * kThreads, held[h]);
    }
    for (int first = kHeld * kThreads; first < chunks; first += kThreads) {
      const int i = first + thread;
      round_chunk(i, i < chunks ? x[i] : uint4{});
    }
    __syncthreads();
    if (thread == 0) {
      a.out.token_scales[row] = a.squares != nullptr ? row_scale : 1.0F;
    }
  } else {
    uint32_t most = 0;
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      most = larger_magnitudes(most, held[h]);
    }
    for (int i = thread + kHeld * kThreads; i < chunks; i += kThreads) {
      most = larger_magnitudes(most, x[i]);
    }
    const uint32_t of_warp = __reduce_max_sync(~0U, larger_half(most));
    if (thread % 32 == 0) {
      most_of[thread / 32] = of_warp;
    }
    __syncthreads();
    uint32_t of_row = 0;
#pragma unroll
    for (const uint32_t v : most_of) {
      of_row = max(of_row, v);
    }
    const float rms = a.squares != nullptr ? row_scale : 1.0F;
    const bool fixed = a.inputs == F8Inputs::kStatic;
    const F8Scale scale =
        fixed ? F8Scale{__fdiv_rn(1.0F, a.input_scale), a.input_scale} : f8_scale(of_row);
    const float before = fixed ? rms : 1.0F;
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      const int i = thread + h * kThreads;
      if (i < chunks) {
        out[i] = rounded_eight(held[h], before, scale.factor);
      }
    }
    for (int i = thread + kHeld * kThreads; i < chunks; i += kThreads) {
      out[i] = rounded_eight(x[i], before, scale.factor);
    }
    if (thread == 0) {
      a.out.token_scales[row] = fixed ? scale.scale : __fmul_rn(scale.scale, rms);
    }
  }
}

// kFours: most chunks of 4 inputs of a thread.
template <bool kGrouped, int kFours>
__global__ void __launch_bounds__(kThreads) norm_and_round_kernel(
    const __grid_constant__ RoundInputsArgs a) {
  __shared__ uint32_t most_of[kThreads / 32];
  __shared__ float squares[kMaxNormedF8Inputs / 64];
  const int thread = static_cast<int>(threadIdx.x);
  const int fours = a.k / 4;
  float4 weight[kFours];
#pragma unroll
  for (int h = 0; h < kFours; ++h) {
    const int i = thread + h * kThreads;
    weight[h] = i < fours ? __ldg(reinterpret_cast<const float4*>(a.norm_weight) + i) : float4{};
  }
  pdl_release();
  pdl_wait();
  const int64_t row = blockIdx.x;
  const auto* x =
      reinterpret_cast<const float4*>(static_cast<const float*>(a.x) + row * a.x_stride);
  auto* out = reinterpret_cast<uint32_t*>(a.out.numbers + row * a.out.pitch);
  float4 values[kFours];
#pragma unroll
  for (int h = 0; h < kFours; ++h) {
    const int i = thread + h * kThreads;
    values[h] = i < fours ? x[i] : float4{};
  }
  uint2 held[kFours];
  uint32_t most = 0;
#pragma unroll
  for (int h = 0; h < kFours; ++h) {
    const int i = thread + h * kThreads;
    const float4 normed = weighted(values[h], weight[h]);
    held[h] = {pack_bf16(normed.x, normed.y), pack_bf16(normed.z, normed.w)};
    const float sum = sum_of_quarters(quarter_of_squares(values[h], ~0U), ~0U);
    if (thread % 16 == 0 && i < fours) {
      squares[i / 16] = sum;
    }
    most = larger_magnitudes(most, held[h].x, held[h].y);
  }
  const uint32_t of_warp = __reduce_max_sync(~0U, larger_half(most));
  if (thread % 32 == 0) {
    most_of[thread / 32] = of_warp;
  }
  __syncthreads();
  uint32_t of_row = 0;
#pragma unroll
  for (const uint32_t v : most_of) {
    of_row = max(of_row, v);
  }
  const float rms = inverse_rms(squares, a.k / 64, thread % 4, static_cast<float>(a.k), a.norm_eps);
  const bool fixed = a.inputs == F8Inputs::kStatic;
  const F8Scale of_all =
      fixed ? F8Scale{__fdiv_rn(1.0F, a.input_scale), a.input_scale} : f8_scale(of_row);
#pragma unroll
  for (int h = 0; h < kFours; ++h) {
    const int i = thread + h * kThreads;
    F8Scale scale = of_all;
    if constexpr (kGrouped) {  // a warp has 128 inputs
      scale =
          f8_scale(__reduce_max_sync(~0U, larger_half(larger_magnitudes(0, held[h].x, held[h].y))));
      if (thread % 32 == 0 && i < fours) {
        a.out.group_scales[i / 32 * a.out.group_stride + row] = scale.scale;
      }
    }
    if (i < fours) {
      out[i] = rounded_four(held[h].x, held[h].y, fixed ? rms : 1.0F, scale.factor);
    }
  }
  if (thread == 0) {
    a.out.token_scales[row] = kGrouped ? rms : fixed ? of_all.scale : __fmul_rn(of_all.scale, rms);
  }
}

}  // namespace

F8Rows f8_rows_at(std::byte* memory, F8Inputs inputs, int64_t m, int32_t k) {
  F8Rows rows;
  rows.pitch = round_up<int64_t>(k, 16);
  rows.group_stride = round_up<int64_t>(m, 128);
  rows.numbers = memory;
  rows.token_scales = reinterpret_cast<float*>(memory + f8_padded_rows(m) * rows.pitch);
  if (inputs == F8Inputs::kGroup) {
    rows.group_scales = rows.token_scales + rows.group_stride;
  }
  return rows;
}

size_t f8_rows_bytes(F8Inputs inputs, int64_t m, int32_t k) {
  const int64_t scales = inputs == F8Inputs::kGroup ? 1 + ceil_div(k, 128) : 1;
  return static_cast<size_t>(f8_padded_rows(m) * round_up<int64_t>(k, 16) +
                             scales * round_up<int64_t>(m, 128) * 4);
}

void round_inputs(Stream& stream, const RoundInputsArgs& args) {
  WR_CHECK(args.k % 8 == 0 && args.x_stride % 8 == 0, "k {}, x {}", args.k, args.x_stride);
  WR_CHECK(args.squares == nullptr || args.k % 64 == 0, "k {}", args.k);
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(args.m));
  shape.block = dim3(kThreads);
  if (args.norm_weight != nullptr) {
    WR_CHECK(args.squares == nullptr && args.k % 64 == 0 && args.k <= kMaxNormedF8Inputs,
             "k {}, at most {}",
             args.k,
             kMaxNormedF8Inputs);
    const bool grouped = args.inputs == F8Inputs::kGroup;
    const auto run = [&](auto* of_groups, auto* other) {
      launch(stream, "norm_and_round", shape, grouped ? of_groups : other, args);
    };
    if (args.k <= 4096) {
      run(norm_and_round_kernel<true, 4>, norm_and_round_kernel<false, 4>);
    } else {
      run(norm_and_round_kernel<true, kMaxNormedF8Inputs / 4 / kThreads>,
          norm_and_round_kernel<false, kMaxNormedF8Inputs / 4 / kThreads>);
    }
    return;
  }
  launch(stream,
         "round_inputs",
         shape,
         args.inputs == F8Inputs::kGroup ? round_inputs_kernel<true> : round_inputs_kernel<false>,
         args);
}

}  // namespace warprow::cuda
