// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/stream.h"
#include "kernels/linear/fp8/sm90_fp8_gemm.h"

#include <cstdint>

namespace warprow::cuda {

// How a product of many rows is split into tiles of 128 rows of x. A cluster of two CTAs has two of them.
struct Sm90Fp8LargePlan {
  int32_t cols = 192;  // rows of w in a tile: 128 or 192
  int32_t parts = 1;   // of k; above 1 only with 128 cols
};
// The fastest plan, and its estimated microseconds on an H200.
Sm90Fp8LargePlan sm90_fp8_large_plan(const PackedWeight& weight, int32_t rows, int32_t num_sms);
double sm90_fp8_large_us(const Sm90Fp8LargePlan& plan,
                         const PackedWeight& weight,
                         int32_t rows,
                         int32_t num_sms);
// Whether TMA can store its outputs.
bool sm90_fp8_large_takes(const Sm90GemmArgs& args);

// The same operation as sm90_fp8_gemm, without plan.rounds and the first half of the next norm. With equal parts both have the
// same bits.
void sm90_fp8_gemm_large(Stream& stream,
                         const Sm90Fp8Args& args,
                         const PackedWeight& weight,
                         const Sm90Fp8LargePlan& plan);

// One instance of the kernel for each kind of output (cmake/stubs.cmake).
template <LinearEpilogue kEpilogue, bool kF32>
void launch_sm90_fp8_large(Stream& stream,
                           const Sm90Fp8Args& args,
                           const PackedWeight& weight,
                           const Sm90Fp8LargePlan& plan);

}  // namespace warprow::cuda
