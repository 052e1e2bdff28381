// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/math.h"
#include "device/cuda/tensor_map.h"
#include "kernels/linear/quant/quant_tiles.h"

#include <cstdint>

namespace warprow::cuda {

// A tensor map of matrices in tiles (quant_tiles.h) that lie one behind the other, each of `units` of 16 rows and k inputs. Its
// coordinates: words of 8 bytes; pieces of tiles (quant_tile_pieces) along k; units; matrices. A box has one tile of box_units
// units of box_matrices matrices; what is behind the ends is zero.
inline CUtensorMap quant_tiles_map(const void* data,
                                   int32_t tile_bytes,
                                   int64_t k,
                                   int64_t units,
                                   int64_t matrices,
                                   int32_t box_units,
                                   int32_t box_matrices) {
  const auto pieces = static_cast<uint32_t>(quant_tile_pieces(tile_bytes));
  const uint64_t piece = static_cast<uint64_t>(tile_bytes) / pieces;
  const auto across = static_cast<uint64_t>(ceil_div<int64_t>(k, kQuantTileCols));
  const uint64_t of_unit = across * static_cast<uint64_t>(tile_bytes);
  const auto all = static_cast<uint64_t>(units);
  return tensor_map<4>(data,
                       {piece / 8, across * pieces, all, static_cast<uint64_t>(matrices)},
                       {piece, of_unit, all * of_unit},
                       {static_cast<uint32_t>(piece / 8),
                        pieces,
                        static_cast<uint32_t>(box_units),
                        static_cast<uint32_t>(box_matrices)},
                       CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                       CU_TENSOR_MAP_DATA_TYPE_INT64,
                       CU_TENSOR_MAP_SWIZZLE_NONE);
}

}  // namespace warprow::cuda
