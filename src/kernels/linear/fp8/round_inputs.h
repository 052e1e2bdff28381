// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/math.h"
#include "device/stream.h"
#include "kernels/linear/packed_weight.h"

#include <cstddef>
#include <cstdint>

namespace warprow::cuda {

// Rows that the numbers of m rows have memory for: TMA takes longer for boxes with rows outside their map. Those behind the
// m-th have any values.
inline constexpr int32_t kF8PaddedRows = 256;
constexpr int64_t f8_padded_rows(int64_t m) { return round_up<int64_t>(m, kF8PaddedRows); }

// A product's inputs as e4m3 numbers times scales.
struct F8Rows {
  std::byte* numbers = nullptr;   // e4m3 [m, pitch]
  int64_t pitch = 0;              // a multiple of 16
  float* token_scales = nullptr;  // [m]
  float* group_scales = nullptr;  // [ceil(k / 128), group_stride]; F8Inputs::kGroup
  int64_t group_stride = 0;       // a multiple of 128, at least m
};

// Where the parts of F8Rows are in memory that begins at `memory` (256-byte aligned; null: only sizes), and their bytes.
F8Rows f8_rows_at(std::byte* memory, F8Inputs inputs, int64_t m, int32_t k);
size_t f8_rows_bytes(F8Inputs inputs, int64_t m, int32_t k);

struct RoundInputsArgs {
  const void* x = nullptr;  // bf16 [m, k], 16-byte aligned rows; with norm_weight float32
  int64_t x_stride = 0;     // elements, a multiple of 8
  // All of a norm: inputs are x * norm_weight in bf16, and rows are divided by the root of x's mean square. Or null.
  const float* norm_weight = nullptr;  // [k]
  // Second half of a norm: rows are to be divided by the root of their mean square.
  const float* squares = nullptr;  // [m, k / 64], or in quarters (HalfNorm); or null
  float norm_eps = 0.0F;
  F8Inputs inputs = F8Inputs::kRow;
  float input_scale = 1.0F;
  int32_t m = 0;
  int32_t k = 0;  // a multiple of 8
  F8Rows out;
  // The product's matrix. Its first ahead_bytes, a multiple of 16, are prefetched to L2 before the wait for the preceding
  // kernel. Not with norm_weight.
  const std::byte* ahead = nullptr;
  int64_t ahead_bytes = 0;
};

// With norm_weight all inputs of a row are held in registers.
inline constexpr int32_t kMaxNormedF8Inputs = 16384;

// Rounds the inputs of a product to e4m3.
//
// Formula: r = 1 / rms of the row, or 1; with norm_weight x is bf16(x * norm_weight) from here on. kRow: s = max(amax, 2^-100)
//   / 448 over the row, number = e4m3(x * (448 / max(amax, 2^-100))), token scale = s * r. kGroup: likewise for each 128
//   inputs, whose s is a group scale; token scale = r. kStatic: number = e4m3((x * r) * (1 / input_scale)), token scale =
//   input_scale. e4m3 rounds to nearest, ties to even, and saturates at 448.
// Shapes: x [m, k].
// Mapping: a CTA a row; up to 12,288 of its inputs stay in registers, with norm_weight all.
// Bytes moved: 3 * m * k, with norm_weight 5 * m * k.
// Numerics: float32, every operation rounded by itself. A function of the row alone, and the same with norm_weight as behind
//   begin_norm (half_norm.h). A row with a NaN or an infinity has NaNs.
// Preconditions: k a multiple of 8, of 64 with squares or norm_weight; with the latter at most kMaxNormedF8Inputs.
// Origin: own.
void round_inputs(Stream& stream, const RoundInputsArgs& args);

}  // namespace warprow::cuda
