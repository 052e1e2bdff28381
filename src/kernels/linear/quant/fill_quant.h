// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/stream.h"
#include "kernels/linear/packed_weight.h"
#include "kernels/random/random_quant.h"

#include <cstddef>
#include <cstdint>

namespace warprow::cuda {

// Fills a part of a random quantised matrix (kernels/random/random_quant.h), in place of a checkpoint.
//
// Formula: number [r, c] is that of row + r and col + c of the whole matrix, its scale likewise. Rows of bf16 or float32 have
//   scale * (number - zero point), rounded.
// Shapes: dst: weight [n, k] in tiles (kF8, kQ8, kQ4: quant_tiles.h, with bf16 scales and without zero points; kF8F8:
//   fp8_tiles.h), or rows (kBF16, kF32).
// Mapping: tiles: a CTA a tile, whose numbers go through shared memory. Rows: a thread an element.
// Bytes moved: those of dst.
// Numerics: the same bits as the tiles or rows that a CPU makes of the same numbers.
// Preconditions: of tiles: k a multiple of 8, n of 16, col of 4 and of the columns that share a scale.
// Origin: own.
struct FillQuantArgs {
  RandomQuant random;
  int64_t row = 0;
  int64_t col = 0;
  PackedWeight weight;  // without data
  std::byte* dst = nullptr;
};
void fill_quant(Stream& stream, const FillQuantArgs& args);

}  // namespace warprow::cuda
