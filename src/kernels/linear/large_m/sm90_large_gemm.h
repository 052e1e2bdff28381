// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.h"
#include "device/stream.h"
#include "kernels/linear/small_m/sm90_gemm.h"

#include <cstdint>

namespace warprow::cuda {

// How a product of many rows is split into tiles of 128 rows of x. A cluster of two CTAs has two of them.
struct Sm90LargePlan {
  // Rows of w in a tile: 128 or 192; with parts of k also 64, without also 256, and if y is bf16 64 and 96.
  int32_t cols = 256;
  int32_t chunks = 1;  // parts of k that are summed apart and then added in order
  // Whether w may be read before the preceding kernel is done.
  bool early_w = true;
};

// Whether there is a kernel for these tiles.
bool sm90_large_has(const Sm90LargePlan& plan, bool y_f32);
// Estimated microseconds on an H200: the start, and the FLOPs of an SM's tiles.
double sm90_large_us(const Sm90LargePlan& plan, int32_t m, int32_t n, int32_t k, int32_t num_sms);
// The fastest plan for these sizes. n: rows of w.
Sm90LargePlan sm90_large_plan(int32_t m, int32_t n, int32_t chunks, int32_t num_sms, bool y_f32);

// The same operation as sm90_bf16_gemm_small_m for any number of rows, without the first half of the next norm.
// Rows of y must be 16-byte aligned. With equal chunks both have the same bits.
void sm90_bf16_gemm_large_m(Stream& stream, const Sm90GemmArgs& args, const Sm90LargePlan& plan);

// One instance of the kernel for each kind of output (cmake/stubs.cmake).
template <LinearEpilogue kEpilogue, bool kF32>
void launch_sm90_large(Stream& stream, const Sm90GemmArgs& args, const Sm90LargePlan& plan);

}  // namespace warprow::cuda
