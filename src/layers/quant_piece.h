// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/linear/packed_weight.h"
#include "layers/weight_format.h"
#include "weights/quant_matrix.h"

#include <cstddef>
#include <cstdint>

namespace warprow {

// Turns rows [first, first + count) of a part of a quantised matrix into a device's form: kQuantTiles of `tiles` (first
// a multiple of a tile's rows), or rows of bf16 or float32. For tiles, throws StartupError if a number is NaN or a
// scale is too large.
void make_quant_piece(const QuantMatrix& matrix,
                      const QuantPart& part,
                      Repack repack,
                      const PackedWeight& tiles,
                      int64_t first,
                      int64_t count,
                      std::byte* dst);

}  // namespace warprow
