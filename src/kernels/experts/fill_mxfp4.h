// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/stream.h"
#include "kernels/experts/mxfp4_tiles.h"

#include <cstdint>

namespace warprow::cuda {

// Fills an expert's matrix with random MXFP4, in place of a checkpoint.
//
// Formula: number [row, col] is the e2m1 number next to element first + row * stride + col of random_quad's vector
//   (kernels/random/fill_random.h) with deviation kE2m1Deviation. All scales are 2^(scale - 127).
// Shapes: dst: the tiles of [rows, cols] in this order.
// Mapping: a thread a word of numbers; every fourth one also writes a byte of scales.
// Bytes moved: those of the tiles.
// Numerics: the same bits as pack_mxfp4_tiles of the same numbers.
// Preconditions: cols a multiple of 32; first and stride even; scale at most kMaxMxfp4Scale.
// Origin: own.
struct FillMxfp4Args {
  void* dst = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  Mxfp4Rows order = Mxfp4Rows::kPlain;
  uint64_t seed = 0;
  int64_t first = 0;
  int64_t stride = 0;
  int32_t scale = 127;
};
void fill_mxfp4(Stream& stream, const FillMxfp4Args& args);

}  // namespace warprow::cuda
