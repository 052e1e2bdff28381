// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cuda_fp8.h>

// 8-bit floats: e4m3, or e5m2.
namespace warprow::cuda {

// Two e4m3 numbers, in the lower bytes, as halves. Exact.
__device__ __forceinline__ uint32_t halves_of_e4m3(uint32_t two) {
  const __half2_raw halves =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(two), __NV_E4M3);
  return halves.x | static_cast<uint32_t>(halves.y) << 16;
}

// The upper two of four e4m3 numbers as halves. Exact. The instruction reads the upper half of the register, without a shift.
__device__ __forceinline__ uint32_t halves_of_upper_e4m3(uint32_t four) {
#if __CUDA_ARCH__ >= 890
  uint32_t out;
  asm("{\n"
      ".reg .b16 lower, upper;\n"
      "mov.b32 {lower, upper}, %1;\n"
      "cvt.rn.f16x2.e4m3x2 %0, upper;\n"
      "}\n"
      : "=r"(out)
      : "r"(four));
  return out;
#else
  return halves_of_e4m3(four >> 16);
#endif
}

// Two floats as two of them, `low` in the lower byte. To nearest, ties to even; magnitudes above the largest number
// become it; NaN stays NaN.
__device__ __forceinline__ uint32_t f8_of_floats(float low, float high, bool e5m2) {
  const float2 two = {low, high};
  return e5m2 ? __nv_cvt_float2_to_fp8x2(two, __NV_SATFINITE, __NV_E5M2)
              : __nv_cvt_float2_to_fp8x2(two, __NV_SATFINITE, __NV_E4M3);
}

}  // namespace warprow::cuda
