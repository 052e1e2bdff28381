// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/wgmma.cuh"

#include <cstdint>

// Hopper's wgmma (sm_90a) of e4m3 numbers, float32 sums: d [64 x cols] += a [64 x 32] * b [cols x 32]^T, both from shared
// memory, inputs innermost. Without `add`, d is overwritten.
namespace warprow::cuda {

// Descriptor of eight rows of an operand without swizzle: chunks of 16 bytes of a row are `leading` bytes apart, rows 16.
__device__ __forceinline__ uint64_t wgmma_plain_operand(uint32_t shared, uint32_t leading) {
  return uint64_t{128 >> 4} << 32 | static_cast<uint64_t>(leading >> 4) << 16 |
         ((shared & 0x3ffff) >> 4);
}

__device__ __forceinline__ void wgmma_f8(float (&d)[4], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %6, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0,%1,%2,%3}, %4, %5, add, 1, 1;\n}\n"
      : WR_ACCS4(d)
      : "l"(a), "l"(b), "r"(add ? 1 : 0));
}
__device__ __forceinline__ void wgmma_f8(float (&d)[8], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %10, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {" WR_ACC8_NAMES
      "}, %8, %9, add, 1, 1;\n}\n"
      : WR_ACCS8(d)
      : "l"(a), "l"(b), "r"(add ? 1 : 0));
}
__device__ __forceinline__ void wgmma_f8(float (&d)[16], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {" WR_ACC16_NAMES
      "}, %16, %17, add, 1, 1;\n}\n"
      : WR_ACCS16(d)
      : "l"(a), "l"(b), "r"(add ? 1 : 0));
}
__device__ __forceinline__ void wgmma_f8(float (&d)[32], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {" WR_ACC32_NAMES
      "}, %32, %33, add, 1, 1;\n}\n"
      : WR_ACCS32(d)
      : "l"(a), "l"(b), "r"(add ? 1 : 0));
}
__device__ __forceinline__ void wgmma_f8(float (&d)[64], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" WR_ACC64_NAMES
      "}, %64, %65, add, 1, 1;\n}\n"
      : WR_ACCS64(d)
      : "l"(a), "l"(b), "r"(add ? 1 : 0));
}
__device__ __forceinline__ void wgmma_f8(float (&d)[96], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %98, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n192k32.f32.e4m3.e4m3 {" WR_ACC96_NAMES
      "}, %96, %97, add, 1, 1;\n}\n"
      : WR_ACCS96(d)
      : "l"(a), "l"(b), "r"(add ? 1 : 0));
}

}  // namespace warprow::cuda
