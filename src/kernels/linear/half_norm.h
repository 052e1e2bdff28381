// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/stream.h"
#include "kernels/linear/linear.h"

namespace warprow {

// As halved_norm_rows of linear.h, if the sum before `behind` is an operation of its own (over ranks or experts). Such a sum
// can do the first half of the norm for any number of rows.
RowRange halved_norm_rows(const DeviceFacts& device, const LinearShape& behind);

}  // namespace warprow

namespace warprow::cuda {

// The first half of a norm (linear.h, HalfNorm) as an operation of its own, for sums whose kernel does not do it.
//
// Formula: half.rows = y * half.weight; half.squares[t, j] = the sum of y's squares in columns 64 j to 64 j + 63, or of up to
//   kMaxQuarteredRows rows its quarters. The last columns may be fewer.
// Shapes: y [T, width] f32, width a multiple of 4.
// Mapping: a CTA a row, 16 lanes for 64 columns.
// Bytes moved: 6 * T * width.
// Numerics: as sm90_bf16_gemm_small_m's first half, bit for bit (finish.cuh).
// Origin: own.
void begin_norm(Stream& stream, const View<const float, 2>& y, const HalfNorm& half);

}  // namespace warprow::cuda
