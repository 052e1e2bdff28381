// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/attention/native/params.h"
#include "kernels/cuda/float8.cuh"
#include "kernels/cuda/ptx.cuh"

#include <cuda_fp16.h>

// The 16-bit operands of the tensor cores, by the cache's format. With a bf16 cache all of them are bf16. Elements of an
// 8-bit cache are exact as halves, so with such a cache all operands are halves: queries are rounded to halves from bf16
// (exactly between 2^-14 and 65,504), and the softmax's weights from float32.
namespace warprow::cuda {

template <KvFormat kFormat>
struct Operands {
  static constexpr int kBytes = 1;  // of an element of the cache
  static constexpr bool kE5M2 = kFormat == KvFormat::kE5M2;

  __device__ __forceinline__ static uint32_t pack(float low, float high) {
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
  }
  __device__ __forceinline__ static float first_of(uint32_t two) {
    return __half2float(__ushort_as_half(static_cast<uint16_t>(two)));
  }
  __device__ __forceinline__ static float second_of(uint32_t two) {
    return __half2float(__ushort_as_half(static_cast<uint16_t>(two >> 16)));
  }
  // Two elements of a query. Magnitudes beyond the largest half become it; NaN stays NaN.
  __device__ __forceinline__ static uint32_t query(uint32_t bf16) {
    const auto bounded = [](float v) { return fabsf(v) > 65504.0F ? copysignf(65504.0F, v) : v; };
    return pack(bounded(__uint_as_float(bf16 << 16)), bounded(__uint_as_float(bf16 & 0xffff0000U)));
  }
  // Of four adjacent elements of the cache the first two, and the last two.
  __device__ __forceinline__ static uint32_t low_pair(uint32_t four) {
    return kE5M2 ? __byte_perm(four, 0, 0x1404) : halves_of_e4m3(four & 0xffffU);
  }
  __device__ __forceinline__ static uint32_t high_pair(uint32_t four) {
    return kE5M2 ? __byte_perm(four, 0, 0x3424) : halves_of_upper_e4m3(four);
  }
  // Bytes 0 and 2 to `even`, bytes 1 and 3 to `odd`. ldmatrix transposes pairs of bytes, so `four` has two elements of two
  // adjacent tokens: each result has one element of both tokens.
  __device__ __forceinline__ static void split(uint32_t four, uint32_t& even, uint32_t& odd) {
    if constexpr (kE5M2) {
      even = __byte_perm(four, 0, 0x2404);
      odd = __byte_perm(four, 0, 0x3414);
    } else {
      const uint32_t sorted = __byte_perm(four, 0, 0x3120);
      even = low_pair(sorted);
      odd = high_pair(sorted);
    }
  }
  __device__ __forceinline__ static void mma(float (&d)[4],
                                             const uint32_t (&a)[4],
                                             uint32_t b0,
                                             uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

template <>
struct Operands<KvFormat::kBF16> {
  static constexpr int kBytes = 2;

  __device__ __forceinline__ static uint32_t pack(float low, float high) {
    return pack_bf16(low, high);
  }
  __device__ __forceinline__ static float first_of(uint32_t two) {
    return __uint_as_float(two << 16);
  }
  __device__ __forceinline__ static float second_of(uint32_t two) {
    return __uint_as_float(two & 0xffff0000U);
  }
  __device__ __forceinline__ static void mma(float (&d)[4],
                                             const uint32_t (&a)[4],
                                             uint32_t b0,
                                             uint32_t b1) {
    mma_bf16(d, a, b0, b1);
  }
};

}  // namespace warprow::cuda
