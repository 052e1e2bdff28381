// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weights/tensor_type.h"

#include <cstddef>
#include <cstdint>

namespace warprow {

// The neutral form of every quantised format, from which kernels pack their own layouts: a row is
// cut into groups and element i of a group is exactly
//
//   w[i] = scale * q[i] + bias        q an int8, scale and bias f32 per group
//
// The product is exact in f32 for every format (at most 18 bits of scale times 6 of q, or 17 times 7), so
// multiply-then-add and a fused multiply-add agree, and both equal gguf.quants.dequantize bit for
// bit as long as the stored scales are finite.
struct GroupTraits {
  // 2 to 6: q + zero_point fits so many bits, unsigned; 8: q is an s8. MXFP4: 4, and q is twice its number.
  int bits;
  int zero_point;  // 0, or half of what the bits can be
  int group;       // elements that share scale and bias: 32, or 16
  bool has_bias;   // otherwise the bias is -0.0, which changes no sum, not even the sign of zero
  // Scale and bias are IEEE halves; otherwise products (split_scales), MXFP4's scale a power of two.
  bool f16_exact;
  // Of types for which q is one of at most 16 numbers: these, padded to 16 with zeros. Else null.
  const int8_t* numbers = nullptr;
  float unit = 1.0F;  // of split scales: a power of two
};

// Of a quantised format; the plain ones have no groups (checked).
const GroupTraits& group_traits(TensorType type);

// Decodes n elements (a multiple of the type's block_elems) of `src`, which need not be aligned.
//   q      i8  [n]          Q4_0 -8..7, Q4_1 and Q4_K 0..15, Q5_0 -16..15, Q5_1 and Q5_K 0..31,
//                           Q6_K -32..31, Q8_0 -128..127, MXFP4 0, +-1, 2, 3, 4, 6, 8, 12,
//                           Q2_K 0..3, Q3_K -4..3, IQ4_NL and IQ4_XS 16 numbers, -127..113,
//                           the other IQ types as in codebook_groups.h
//   scale  f32 [n / group]
//   bias   f32 [n / group]  null allowed if the type has none
void decode_groups(
    TensorType type, const std::byte* src, int64_t n, int8_t* q, float* scale, float* bias);

// The same for a row of MXFP4 whose numbers and scales are separate, as in safetensors: numbers [n / 2], the even element
// in the low bits, and scales [n / 32].
void decode_mxfp4_groups(
    const std::byte* numbers, const std::byte* scales, int64_t n, int8_t* q, float* scale);

// Separates n elements of GGUF's MXFP4 (a multiple of 32) into such numbers and scales.
void split_mxfp4_blocks(const std::byte* src, int64_t n, std::byte* numbers, std::byte* scales);

// The scales of a type of super-blocks of 256 as the factors whose product they are: a half for each block and an s8
// for each group. A block's decoded scale is exactly unit * f16_to_f32(scale_half) * scale_factor, its bias likewise
// without the unit. All arrays as in decode_groups but the halves, which are [n / block_elems]; the bias's may be null if
// the type has none.
struct SplitScales {
  uint16_t* scale_half;
  int8_t* scale_factor;
  uint16_t* bias_half;
  int8_t* bias_factor;
};
void split_scales(TensorType type, const std::byte* src, int64_t n, const SplitScales& out);

}  // namespace warprow
