// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weights/tensor_type.h"

#include <cstddef>
#include <cstdint>

namespace warprow {

// dst[0..n) = the values of n consecutive elements (a multiple of the type's block_elems) stored
// at src, which need not be aligned. Bit-equal to Python's gguf.quants.dequantize for finite
// scales, the sign of zero included.
// Thread: pure; rows may be split over threads in any way without changing a bit.
void dequantize_row(TensorType type, const std::byte* src, float* dst, int64_t n);
// The same for separate MXFP4 numbers and scales (weights/quant_groups.h).
void dequantize_mxfp4_row(const std::byte* numbers, const std::byte* scales, float* dst, int64_t n);

}  // namespace warprow
