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

WR_WGMMA_ADD(wgmma_f8, 4, "m64n8k32.f32.e4m3.e4m3", "%4", "%5", "%6", "1, 1")
WR_WGMMA_ADD(wgmma_f8, 8, "m64n16k32.f32.e4m3.e4m3", "%8", "%9", "%10", "1, 1")
WR_WGMMA_ADD(wgmma_f8, 16, "m64n32k32.f32.e4m3.e4m3", "%16", "%17", "%18", "1, 1")
WR_WGMMA_ADD(wgmma_f8, 32, "m64n64k32.f32.e4m3.e4m3", "%32", "%33", "%34", "1, 1")
WR_WGMMA_ADD(wgmma_f8, 64, "m64n128k32.f32.e4m3.e4m3", "%64", "%65", "%66", "1, 1")
WR_WGMMA_ADD(wgmma_f8, 96, "m64n192k32.f32.e4m3.e4m3", "%96", "%97", "%98", "1, 1")

}  // namespace warprow::cuda
