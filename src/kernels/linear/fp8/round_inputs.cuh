// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/float8.cuh"

#include <cstdint>
#include <cuda_runtime.h>

// From bf16 inputs to e4m3 numbers (round_inputs.h), for all kernels that do it: every operation is rounded by itself.
namespace warprow::cuda {

// The larger of each half of two bf16 magnitudes; a NaN is larger than every number.
__device__ __forceinline__ uint32_t larger_magnitudes(uint32_t most, uint32_t a, uint32_t b) {
  constexpr uint32_t kMagnitudes = 0x7fff7fffU;
  return __vmaxu2(most, __vmaxu2(a & kMagnitudes, b & kMagnitudes));
}
__device__ __forceinline__ uint32_t larger_magnitudes(uint32_t most, const uint4& x) {
  return larger_magnitudes(larger_magnitudes(most, x.x, x.y), x.z, x.w);
}
// The larger half, as the bits of a float32.
__device__ __forceinline__ uint32_t larger_half(uint32_t most) {
  return max(most << 16, most & 0xffff0000U);
}

// An input times `factor` is rounded to an e4m3 number. That number times `scale` stands for the input.
struct F8Scale {
  float factor;
  float scale;
};
__device__ __forceinline__ F8Scale f8_scale(uint32_t most_bits) {
  const float most = fmaxf(__uint_as_float(most_bits), 0x1p-100F);
  return {__fdiv_rn(448.0F, most), __fdiv_rn(most, 448.0F)};
}

__device__ __forceinline__ uint32_t pack_f8(float a, float b, float c, float d) {
  return f8_of_floats(c, d, false) << 16 | f8_of_floats(a, b, false);
}

// Four or eight bf16 times `before`, then times `factor`.
__device__ __forceinline__ uint32_t rounded_four(uint32_t a,
                                                 uint32_t b,
                                                 float before,
                                                 float factor) {
  const auto value = [&](uint32_t pair, bool high) {
    const float v = __uint_as_float(high ? pair & 0xffff0000U : pair << 16);
    return __fmul_rn(__fmul_rn(v, before), factor);
  };
  return pack_f8(value(a, false), value(a, true), value(b, false), value(b, true));
}
__device__ __forceinline__ uint2 rounded_eight(const uint4& x, float before, float factor) {
  return {rounded_four(x.x, x.y, before, factor), rounded_four(x.z, x.w, before, factor)};
}

}  // namespace warprow::cuda
