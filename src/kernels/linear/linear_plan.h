// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/small_m/sm90_gemm.h"

#include <cstdint>

namespace warprow::cuda {

// Row limits of our own kernels for a product: sm80_bf16_gemm_small_m takes up to `sm80` rows, or for a batch-invariant
// product sm90_bf16_gemm_warps up to `warps`; sm90_bf16_gemm_small_m up to `all`. More take cuBLASLt, or for a
// batch-invariant product sm90_bf16_gemm_large_m or blocks of rows of sm90_bf16_gemm_small_m. For bf16 weights: float32
// ones have one kernel, and quantised ones too.
struct OwnRows {
  int64_t sm80 = 0;
  int64_t all = 0;
  int64_t warps = 0;
};
OwnRows own_rows(const LinearShape& shape, const DeviceFacts& device);

enum class LinearPath : uint8_t {
  kSm80Gemm,
  kSm90Warps,
  kSm90Gemm,
  kSm90LargeGemm,
  kLibrary,
  kF32Gemm,
  kSm90Quant,
  kSm90QuantLarge,  // to bf16, then kSm90LargeGemm
  kSm90Fp8
};
LinearPath linear_path(const LinearShape& shape, int64_t num_rows, const DeviceFacts& device);

// The parts of k that every kernel of a batch-invariant product [n, k] sums apart, each in order, and then adds in order: 1,
// 2 or 4, the most for which the SMs of an H100 can hold all parts of all tiles of 64 outputs at once, one each (for small
// weights half of the SMs), and each part has at least 256 inputs. A function of n and k alone. 0: the product has no such
// kernels.
int32_t invariant_chunks(const LinearShape& shape, const DeviceFacts& device);

// How LinearPath::kSm90Gemm splits a product.
Sm90GemmPlan sm90_gemm_plan(const LinearShape& shape,
                            int64_t num_rows,
                            const DeviceFacts& device,
                            bool has_term);

}  // namespace warprow::cuda
