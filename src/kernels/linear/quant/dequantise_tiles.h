// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/stream.h"
#include "kernels/linear/packed_weight.h"

#include <cstdint>

namespace warprow::cuda {

// Rows of a matrix in tiles as bf16, quant_weight of each number.
struct DequantiseTilesArgs {
  PackedWeight weight;    // in tiles (quant_tiles.h)
  int32_t first_row = 0;  // a multiple of a tile's rows, as num_rows
  int32_t num_rows = 0;
  void* out = nullptr;  // bf16 [num_rows, k]
};
void dequantise_tiles(Stream& stream, const DequantiseTilesArgs& args);

}  // namespace warprow::cuda
