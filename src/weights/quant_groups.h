// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weights/weight_format.h"

#include <cstddef>
#include <cstdint>

namespace warprow {

// The neutral form of every quantised format, from which kernels pack their own layouts: a row is
// cut into groups and element i of a group is exactly
//
//   w[i] = scale * q[i] + bias        q an int8, scale and bias f32 per group
//
// The product is exact in f32 for every format (at most 18 bits of scale times 6 of q), so
// multiply-then-add and a fused multiply-add agree, and both equal gguf.quants.dequantize bit for
// bit as long as the stored scales are finite.
struct GroupTraits {
  int bits;        // 4: q + zero_point fits a nibble (0..15); 8 otherwise
  int zero_point;  // q = nibble - zero_point: 8 for Q4_0, 0 for Q4_1 and Q4_K. 8-bit q: 0
  int group;       // elements that share scale and bias: 32, or 16 for Q6_K
  bool has_bias;   // otherwise the bias is -0.0, which changes no sum, not even the sign of zero
  bool f16_exact;  // scale and bias are IEEE halves
};

// Of a quantised format; the plain ones have no groups (checked).
const GroupTraits& group_traits(WeightFormat format);

// Decodes n elements (a multiple of the format's block_elems) of `src`, which need not be aligned.
//   q      i8  [n]          Q4_0 -8..7, Q4_1 and Q4_K 0..15, Q5_0 -16..15, Q5_1 and Q5_K 0..31,
//                           Q6_K -32..31, Q8_0 -128..127
//   scale  f32 [n / group]
//   bias   f32 [n / group]  null allowed if the format has none
void decode_groups(
    WeightFormat format, const std::byte* src, int64_t n, int8_t* q, float* scale, float* bias);

}  // namespace warprow
