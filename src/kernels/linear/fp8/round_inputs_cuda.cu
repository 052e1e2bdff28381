// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
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

template <bool kGrouped>
__global__ void __launch_bounds__(kThreads) round_inputs_kernel(
    const __grid_constant__ RoundInputsArgs a) {
  __shared__ uint32_t most_of[kThreads / 32];
  __shared__ float row_scale;
  pdl_release();
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

}  // namespace

F8Rows f8_rows_at(std::byte* memory, F8Inputs inputs, int64_t m, int32_t k) {
  F8Rows rows;
  rows.pitch = round_up<int64_t>(k, 16);
  rows.group_stride = round_up<int64_t>(m, 128);
  const int64_t numbers = round_up<int64_t>(m * rows.pitch, 256);
  rows.numbers = memory;
  rows.token_scales = reinterpret_cast<float*>(memory + numbers);
  if (inputs == F8Inputs::kGroup) {
    rows.group_scales = rows.token_scales + rows.group_stride;
  }
  return rows;
}

size_t f8_rows_bytes(F8Inputs inputs, int64_t m, int32_t k) {
  const int64_t scales = inputs == F8Inputs::kGroup ? 1 + ceil_div(k, 128) : 1;
  return static_cast<size_t>(round_up<int64_t>(m * round_up<int64_t>(k, 16), 256) +
                             scales * round_up<int64_t>(m, 128) * 4);
}

void round_inputs(Stream& stream, const RoundInputsArgs& args) {
  WR_CHECK(args.k % 8 == 0 && args.x_stride % 8 == 0, "k {}, x {}", args.k, args.x_stride);
  WR_CHECK(args.squares == nullptr || args.k % 64 == 0, "k {}", args.k);
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(args.m));
  shape.block = dim3(kThreads);
  launch(stream,
         "round_inputs",
         shape,
         args.inputs == F8Inputs::kGroup ? round_inputs_kernel<true> : round_inputs_kernel<false>,
         args);
}

}  // namespace warprow::cuda
