// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/view.h"
#include "kernels/linear/packed_weight.h"
#include "kernels/op.h"

#include <cstddef>
#include <cstdint>

namespace warprow {

// How activations meet quantised weights. Plain-float weights always use kF32.
//  kF32: float32 sums over exactly dequantised weights.
//  kInt8: activations are rounded to int8, one scale per 32 inputs; a group's sum is exact.
enum class ActFormat : uint8_t { kF32, kInt8 };

// One matrix of a fused linear operation, and where in a row of y its outputs go.
struct LinearSegment {
  PackedWeight w;
  const float* bias = nullptr;  // dev f32 [w.n], or null
  int64_t y_col = 0;
};

inline constexpr int kMaxLinearSegments = 4;

struct LinearArgs {
  View<const float, 2> x;  // dev f32 [num_toks, k]
  View<float, 2> y;  // dev f32 [num_toks, at least y_col + n of every segment]; must not overlap x
  LinearSegment segments[kMaxLinearSegments];
  int32_t num_segments = 0;
  ActFormat act = ActFormat::kF32;
  bool add_to_y = false;
  std::byte* scratch = nullptr;  // dev, 64-byte aligned, linear_scratch_bytes; kInt8 only
};

// Formula: y[t, y_col + j] = (add_to_y ? y : 0) + bias[j] + sum over i of w[j, i] * x[t, i].
// Shapes: x [num_toks, k] and y have strided rows; all segments have the same k; num_toks may be 0.
//   Columns of y that no segment names are left alone.
// Mapping (CPU): pairs of 16-output panels over the compute pool, one pass for all segments. A few
//   rows (8 with AVX-512) stream the packed weights through registers; more rows unpack them once
//   per block of inputs into L1 and use register tiles.
// Bytes moved: the packed weights once, whatever num_toks.
// Numerics: f32 accumulators. Every (t, j) has one sequence of operations, fixed by k and the kind
//   of weight, so a row's result is bit-identical whatever num_toks, the other rows and the number
//   of threads (panel_access.h says which sequence). AVX-512 and AVX2 agree bit for bit; the
//   generic set lacks fused multiply-adds and rounds differently.
// Preconditions: 1 to kMaxLinearSegments segments; x.stride[1] and y.stride[1] are 1; scratch
//   belongs to this operation alone until it has run.
// Origin: own design; the packed layout is in panel_layout.h.
WR_OP(linear, LinearArgs);

// Scratch for any linear operation of up to max_toks rows of up to max_k inputs.
size_t linear_scratch_bytes(int64_t max_toks, int64_t max_k);

}  // namespace warprow
